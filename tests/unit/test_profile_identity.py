"""The hash of a large file is remembered for as long as the file, and what lies beside it, is the same."""

import os
from pathlib import Path

import pytest

from partita.profiling import identity
from partita.profiling.identity import model_hash

LARGE = 1 << 22


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are really read."""
    found: list[Path] = []
    really = identity._hash

    def noted(path: Path) -> str:
        found.append(path)
        return really(path)

    monkeypatch.setattr(identity, "_hash", noted)
    return found


def test_a_large_file_is_read_once_and_again_when_it_changes(tmp_path: Path, read: list[Path]) -> None:
    path, other = tmp_path / "a.pt", tmp_path / "b.pt"
    path.write_bytes(bytes(LARGE))
    other.write_bytes(bytes(LARGE))
    first = model_hash(path)
    assert model_hash(path) == first == model_hash(other)
    assert read == [path, other]
    path.write_bytes(b"\1" * LARGE)
    os.utime(path, ns=(1, 1))
    assert model_hash(path) != first
    other.replace(path)
    assert model_hash(path) == first


def test_weights_beside_it_count(tmp_path: Path, read: list[Path]) -> None:
    path, weights = tmp_path / "a.xml", tmp_path / "a.bin"
    path.write_bytes(b" " * LARGE)
    weights.write_bytes(b"1")
    first = model_hash(path)
    assert model_hash(path) == first
    assert len(read) == 1
    weights.write_bytes(b"22")
    assert model_hash(path) != first


def test_a_small_file_is_always_read(tmp_path: Path, read: list[Path]) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"1")
    assert [model_hash(path), model_hash(path)] == [model_hash(path)] * 2
    assert len(read) == 3
