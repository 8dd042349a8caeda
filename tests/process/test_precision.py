"""Lower precision: only if allowed, only where the CPU has instructions for it, and never unsaid."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from partita import choosing
from partita.choosing import Choosing, adopted, candidates_of, chosen, stored
from partita.cli.app import run
from partita.cli.choosing import show_choice
from partita.core.choice import Assessment, Choice, Verdict
from partita.core.errors import InvalidInput
from partita.core.formats import CALIBRATION
from partita.deploy import deployment_for
from partita.profiling.calibration_files import keep_items
from partita.settings import ServerSettings
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


def agreeing(share: float | None, folder: Path) -> ModelSource:
    source = allowing(None, folder)
    return replace(source, settings=msgspec.structs.replace(source.settings, top1_agreement=share))


def items(folder: Path, count: int = 160) -> Path:
    np.save(folder / "items.npy", np.random.default_rng(1).standard_normal((count, 64), np.float32))
    return folder / "items.npy"


def choose(source: ModelSource, samples: Path | None = None) -> Choice:
    choice = chosen(source, ONE, TOPOLOGY, Choosing(budget_s=40.0, runtimes=(), samples=samples))
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


def static_of(choice: Choice) -> Assessment:
    return next(a for a in choice.assessments if CALIBRATION in a.candidate.options)


def test_items_that_are_kept_quantise_activations_too(folder: Path) -> None:
    path, name = str(models.mlp(folder / "mlp.onnx")), keep_items(items(folder))
    (folder / "items.npy").unlink()
    x = {"x": np.random.default_rng(0).standard_normal((8, 64), np.float32)}
    exact = runtime_loader("onnxruntime")(LoadRequest(path=path)).infer(x)["y"]
    for runtime in ("onnxruntime", "openvino"):
        options = {"precision": "int8", CALIBRATION: name}
        low = runtime_loader(runtime)(LoadRequest(path=path, options=options)).infer(x)["y"]
        assert 0 < np.abs(exact - low).max() < 0.5
        gone = LoadRequest(path=path, options={**options, CALIBRATION: "gone"})
        with pytest.raises(InvalidInput, match="'gone' is neither a file in"):
            runtime_loader(runtime)(gone)
    with pytest.raises(InvalidInput, match="needs calibration items"):
        runtime_loader("openvino")(LoadRequest(path=path, options={"precision": "int8"}))


def test_agreement_of_the_largest_output_admits_on_the_users_items_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput, match="your own items"):
        choose(agreeing(0.5, folder))
    given = items(folder)
    source = agreeing(0.5, folder)
    choice = choose(source, given)
    admitted = static_of(choice)
    assert admitted.verdict is Verdict.ADMITTED
    lowered = choice.lowered(admitted)
    assert lowered is not None
    assert lowered.top1 is not None
    assert 0.5 <= lowered.top1 <= 1.0
    assert lowered.speedup is not None
    kept = replace(choice, winner=admitted.candidate.key, by_batch={})
    monkeypatch.setattr(choosing, "load_choice", lambda _: kept)
    assert adopted(source, TOPOLOGY).settings.options == admitted.candidate.options
    deployment = deployment_for(source, ServerSettings(), TOPOLOGY, ONE, lambda *_: None, is_alone=True)
    assert deployment.lowered == {"": lowered}
    show_choice(kept)
    assert f"  {admitted.candidate.key}: {lowered}" in capsys.readouterr().out
    (folder / "partita.toml").write_text("[model.mlp]\ntop1_agreement = 0.5\nmax_batch = 2\n")
    argv = ["plan", str(source.path), "--cores", "1", "--batch", "1", "--json"]
    assert run([*argv, "--config", str(folder / "partita.toml")]) == 0
    assert json.loads(capsys.readouterr().out)["precision"] == msgspec.to_builtins(lowered)


def test_without_a_word_calibration_items_change_nothing(folder: Path) -> None:
    given, plain = items(folder), allowing(None, folder)
    assert [c.key for c in candidates_of(plain, (), given)] == ["onnxruntime"]
    assert chosen(plain, ONE, TOPOLOGY, Choosing(runtimes=(), samples=given)) is None
    assert not (folder / "cache" / CALIBRATION).exists()
