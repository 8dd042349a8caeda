"""Lower precision: only if allowed, only where the CPU has instructions for it, and never unsaid."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from partita import choosing
from partita.choosing import Choosing, adopted, candidates_of, chosen, stored
from partita.core.choice import Choice, Verdict
from partita.core.errors import InvalidInput
from partita.sources import ModelSource, find_models
from partita.system.cpus import read_topology
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.registry import runtime_loader
from tests import models

pytestmark = [pytest.mark.process, pytest.mark.alone]

TOPOLOGY = read_topology()
ONE = tuple(cpu.cpu for cpu in TOPOLOGY.core_order())[:1]
INT8 = "onnxruntime precision=int8"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(choosing, "runtimes_for", lambda *_, **__: ("onnxruntime", "other"))
    monkeypatch.setattr(choosing, "entry_points", lambda group: [])
    monkeypatch.setattr(choosing, "instructions", lambda: frozenset({"avx512_vnni"}))
    return tmp_path


def allowing(deviation: float | None, folder: Path) -> ModelSource:
    (found,) = find_models(models.mlp(folder / "mlp.onnx"))
    settings = msgspec.structs.replace(found.settings, max_batch=2, allow_deviation=deviation)
    return replace(found, settings=settings)


def choose(source: ModelSource) -> Choice:
    choice = chosen(source, ONE, TOPOLOGY, Choosing(budget_s=40.0, runtimes=()))
    assert choice is not None
    return choice


def test_eight_bits_are_near_and_not_the_same(folder: Path) -> None:
    path = str(models.mlp(folder / "mlp.onnx"))
    exact = runtime_loader("onnxruntime")(LoadRequest(path=path))
    low = runtime_loader("onnxruntime")(LoadRequest(path=path, options={"precision": "int8"}))
    x = {"x": np.random.default_rng(0).standard_normal((8, 64), np.float32)}
    off = np.abs(exact.infer(x)["y"] - low.infer(x)["y"]).max()
    assert 0 < off < 0.5
    with pytest.raises(InvalidInput, match="precision = 'int3' must be one of f32, int8"):
        runtime_loader("onnxruntime")(LoadRequest(path=path, options={"precision": "int3"}))


def test_it_is_no_candidate_unless_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert INT8 not in [c.key for c in candidates_of(allowing(None, folder), ())]
    assert INT8 in [c.key for c in candidates_of(allowing(0.1, folder), ())]
    monkeypatch.setattr(choosing, "instructions", lambda: frozenset({"avx2"}))
    assert INT8 not in [c.key for c in candidates_of(allowing(0.1, folder), ())]


def test_what_is_off_by_more_than_allowed_is_refused_and_the_deviation_is_kept(folder: Path) -> None:
    strict = choose(allowing(1e-6, folder))
    refused = next(a for a in strict.assessments if a.candidate.key == INT8)
    assert refused.verdict is Verdict.REFUSED
    assert "allowed is 1e-06" in refused.reason
    source = allowing(0.5, folder)
    loose = choose(source)
    admitted = next(a for a in loose.assessments if a.candidate.key == INT8)
    assert admitted.verdict is Verdict.ADMITTED
    assert admitted.largest is not None
    assert 1e-6 < admitted.largest.relative < 0.5
    assert stored(source, TOPOLOGY) == loose
    plain = allowing(None, folder)
    assert stored(plain, TOPOLOGY) is None
    assert adopted(plain, TOPOLOGY) == plain
