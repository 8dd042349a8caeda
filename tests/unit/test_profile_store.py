"""Profile files: read, written, refused."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from partita.core.errors import InvalidInput, ProfileMismatch
from partita.core.profile import Profile, ProfilePoint, Provenance
from partita.profiling import store
from partita.profiling.csv_table import read_csv

HERE = Provenance(
    model_hash="ab" * 32,
    runtime="onnxruntime",
    runtime_version="1.22.0",
    cpu_model="Test CPU",
    topology="1 socket, 2 cores, 2 threads",
    dimensions={"length": 128},
)
FULL = ProfilePoint(
    threads=2,
    batch=4,
    mean_ms=3.5,
    min_ms=3.0,
    max_ms=4.0,
    stddev_ms=0.25,
    infer_ms=3.25,
    iterations=12,
    resident_bytes=1 << 20,
    drift=1.01,
)
PROFILE = Profile([FULL, ProfilePoint(threads=1, batch=1, mean_ms=1.5)], provenance=HERE, load_s=0.5)


def csv(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "profile.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_saved_profile_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "profile.json"
    store.save(path, PROFILE)
    again = store.read_profile(path)
    assert again.points == PROFILE.points
    assert again.provenance == HERE
    assert again.load_s == 0.5
    assert list(path.parent.iterdir()) == [path]


def test_profile_without_provenance_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    store.save(path, Profile([FULL]))
    assert store.load(path).provenance is None


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.json"
    store.save(path, PROFILE)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(store.SaveFailed, match="No space left on device"):
        store.save(path, Profile([FULL]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": 3}, "not a Partita profile"),
        ({"partita_profile": 99}, "format 99"),
        ({"colour": "red"}, "colour"),
        ({"points": [{"threads": 0, "batch": 1, "mean_ms": 1.0}]}, "above 0"),
        ({"points": [{"threads": 1, "batch": 1}]}, "mean_ms"),
    ],
)
def test_wrong_json_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "profile.json"
    store.save(path, PROFILE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidInput, match=said):
        store.load(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.json"):
        store.load(tmp_path / "none.json")


def test_profiles_of_different_things_are_not_mixed() -> None:
    store.require_same(HERE, HERE, where="x.json")
    other = replace(HERE, cpu_model="Other CPU", dimensions={"length": 64})
    with pytest.raises(ProfileMismatch, match=r"cpu model Other CPU there, Test CPU here.*dimensions"):
        store.require_same(other, HERE, where="x.json")
    with pytest.raises(ProfileMismatch, match="does not say"):
        store.require_same(None, HERE, where="x.json")


def test_cache_is_keyed_by_provenance(tmp_path: Path) -> None:
    store.save(store.cached_path(tmp_path, HERE), PROFILE)
    found = store.load_cached(tmp_path, HERE)
    assert found is not None
    assert found.points == PROFILE.points
    for other in (replace(HERE, runtime_version="2"), replace(HERE, dimensions={"length": 64})):
        assert store.load_cached(tmp_path, other) is None


def test_axis_of_the_default_size_is_found_without_being_given(tmp_path: Path) -> None:
    measured = replace(HERE, dimensions={"length": 64})
    store.save(store.cached_path(tmp_path, measured), Profile([FULL], provenance=measured))
    assert store.load_cached(tmp_path, replace(HERE, dimensions={})) is not None


def test_broken_cache_is_no_cache(tmp_path: Path) -> None:
    store.cached_path(tmp_path, HERE).write_text("{")
    assert store.load_cached(tmp_path, HERE) is None


# --- CSV ------------------------------------------------------------------------------------------


def test_csv_with_all_columns(tmp_path: Path) -> None:
    path = csv(
        tmp_path,
        "mode,threads,batch,latency_min_ms,latency_mean_ms,latency_max_ms",
        "eager,1,1,1.0,2.0,3.0",
        "script,1,1,1.5,2.5,3.5",
    )
    point = store.read_profile(path, mode="script").points[1, 1]
    assert (point.min_ms, point.mean_ms, point.max_ms) == (1.5, 2.5, 3.5)


def test_csv_with_the_needed_columns_only(tmp_path: Path) -> None:
    profile = read_csv(csv(tmp_path, "batch,threads,latency_mean_ms,note", "4,2,1.25,x"))
    assert profile.latency_ms(2, 4) == 1.25


@pytest.mark.parametrize(
    ("lines", "mode", "said"),
    [
        (["threads,batch", "1,1"], None, "line 1: no column latency_mean_ms"),
        (["threads,batch,latency_mean_ms", "1,1,2.0", "x,1,2.0"], None, "line 3: threads is 'x'"),
        (["threads,batch,latency_mean_ms", "1,0,2.0"], None, "line 2: batch is '0'"),
        (["threads,batch,latency_mean_ms", "1,1,nan"], None, "line 2: latency_mean_ms is 'nan'"),
        (["threads,batch,latency_mean_ms", "1,1"], None, "line 2: latency_mean_ms is None"),
        (["threads,batch,latency_mean_ms", "1,1,1", "1,1,2"], None, "line 3.*already in line 2"),
        (["threads,batch,latency_mean_ms"], None, "no rows"),
        (["mode,threads,batch,latency_mean_ms", "a,1,1,1", "b,1,1,1"], None, "modes a, b"),
        (["mode,threads,batch,latency_mean_ms", "a,1,1,1"], "c", "no rows of mode 'c'.*has a"),
    ],
)
def test_wrong_csv_is_refused_with_its_line(
    tmp_path: Path, lines: list[str], mode: str | None, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_csv(csv(tmp_path, *lines), mode=mode)


def test_mode_is_for_csv_only(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    store.save(path, PROFILE)
    with pytest.raises(InvalidInput, match="--mode"):
        store.read_profile(path, mode="script")
