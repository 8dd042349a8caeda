"""What OpenVINO transformed is kept: answers are those of the model itself, bit by bit, or it is compiled."""

import gc
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from partita.core.errors import LoadFailed
from partita.worker.runtimes import kept_models
from partita.worker.runtimes.interface import LoadRequest, Option, Runtime
from partita.worker.runtimes.registry import runtime_loader
from partita.worker.warmup import generated_inputs
from tests import models
from tests.conformance.kept_conformance import KeptConformance, answer_alike
from tests.conformance.test_onnx_kept import (
    attention,
    branches,
    convolutions,
    folded,
    half_precision,
    quantised,
    saved,
)
from tests.conformance.test_runtimes import NETWORKS, external, needs_openvino

pytestmark = needs_openvino


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder of its own, where a model of any size is kept."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_models, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "openvino"


def loaded(path: Path, **options: Option) -> Runtime:
    return on_threads(1, path, **options)


def on_threads(threads: int, path: Path, **options: Option) -> Runtime:
    request = LoadRequest(path=str(path), threads=threads, max_batch=8, options=options)
    return runtime_loader("openvino")(request)


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*/model.blob"))


def remarks(runtime: Runtime) -> tuple[str, ...]:
    said: tuple[str, ...] = runtime.remarks  # type: ignore[attr-defined]
    return said


@pytest.mark.parametrize("model", [external, models.two_inputs, models.unbatched])
class TestOpenVinoKept(KeptConformance):
    """What the second who loads a model gets."""

    load = staticmethod(loaded)
    kept = staticmethod(kept)


@pytest.mark.parametrize("options", [{}, {"denormals_as_zero": True}, {"hint": "throughput"}], ids=str)
@pytest.mark.parametrize(
    "model", [*NETWORKS, convolutions, attention, half_precision, quantised, branches, folded]
)
def test_the_answers_are_the_models_own_bit_by_bit(
    model: Callable[[Path], Path], options: dict[str, Option], tmp_path: Path, cache: Path
) -> None:
    path = model(tmp_path / "model.onnx")
    own = loaded(path, keep_optimized=False, **options)
    assert not kept(cache)
    first, second = loaded(path, **options), loaded(path, **options)
    assert kept(cache)
    gc.collect()  # what only we hold of the mapped file must still be there
    answer_alike(own, [first, second])


def test_threads_and_streams_are_those_of_the_instance(tmp_path: Path, cache: Path) -> None:
    path = convolutions(tmp_path / "model.onnx")
    loaded(path)
    one = on_threads(2, path, streams=2)
    assert one.threads_seen == 2
    assert on_threads(2, path).threads_seen == 2
    assert len(kept(cache)) == 1
    own = on_threads(2, path, streams=2, keep_optimized=False)
    inputs = generated_inputs(own.signature, 5, {})
    assert one.infer(inputs)["y"].tobytes() == own.infer(inputs)["y"].tobytes()


def test_precisions_are_kept_side_by_side(tmp_path: Path, cache: Path) -> None:
    path = convolutions(tmp_path / "model.onnx")
    exact, rounded = loaded(path), loaded(path, precision="bf16")
    assert len(kept(cache)) == 2
    inputs = generated_inputs(exact.signature, 3, {})
    own = loaded(path, precision="bf16", keep_optimized=False).infer(inputs)["y"]
    assert loaded(path, precision="bf16").infer(inputs)["y"].tobytes() == own.tobytes()
    assert loaded(path).infer(inputs)["y"].tobytes() == exact.infer(inputs)["y"].tobytes()
    assert rounded.infer(inputs)["y"].tobytes() == own.tobytes()


@pytest.mark.parametrize("harm", ["short", "gone", "one bit", "garbage", "longer"])
def test_a_damaged_copy_is_replaced(harm: str, tmp_path: Path, cache: Path) -> None:
    path = models.linear(tmp_path / "model.onnx", inputs=64, outputs=64)
    own = loaded(path, keep_optimized=False)
    loaded(path)
    [place] = kept(cache)
    good = place.read_bytes()
    place.chmod(0o600)
    if harm == "gone":
        place.unlink()
    elif harm == "short":
        place.write_bytes(good[: len(good) // 2])
    elif harm == "one bit":
        damaged = bytearray(good)
        damaged[-64 * 2] ^= 0x40
        place.write_bytes(bytes(damaged))
    elif harm == "garbage":
        place.write_bytes(os.urandom(len(good)))
    else:
        place.write_bytes(good + b"more")
    inputs = generated_inputs(own.signature, 3, {})
    for _ in range(2):
        runtime = loaded(path)
        assert runtime.infer(inputs)["y"].tobytes() == own.infer(inputs)["y"].tobytes()
        assert remarks(runtime) == ()
    assert kept(cache) == [place]
    assert len(place.read_bytes()) == len(good)


def test_a_model_that_was_changed_is_compiled_anew(tmp_path: Path, cache: Path) -> None:
    path = external(tmp_path / "model.onnx")
    loaded(path)
    [place] = kept(cache)
    before = place.stat().st_ino
    weights = tmp_path / "model.data"
    content, was = bytearray(weights.read_bytes()), weights.stat()
    content[:4] = np.float32(100.0).tobytes()
    weights.write_bytes(bytes(content))
    os.utime(weights, ns=(was.st_atime_ns, was.st_mtime_ns))
    runtime, own = loaded(path), loaded(path, keep_optimized=False)
    assert kept(cache) == [place]
    assert place.stat().st_ino != before
    inputs = generated_inputs(own.signature, 3, {})
    assert runtime.infer(inputs)["y"].tobytes() == own.infer(inputs)["y"].tobytes()


def test_a_cache_folder_that_cannot_be_written_to_is_told_and_does_no_harm(
    tmp_path: Path, cache: Path
) -> None:
    cache.parent.write_text("not a folder")
    runtime = loaded(models.linear(tmp_path / "model.onnx"))
    assert "not kept" in remarks(runtime)[0]
    assert runtime.infer({"x": np.ones((2, 4), np.float32)})["y"].shape == (2, 3)


def test_a_small_one_is_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_models, "LEAST_BYTES", 10 << 20)
    assert remarks(loaded(models.mlp(tmp_path / "model.onnx"))) == ()
    assert not cache.exists()


def deep(path: Path, layers: int) -> Path:
    """Write convolutions with normalisations that are folded, some 20 MB."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Any] = {}
    value = "x"
    for k in range(layers):
        names = [f"{name}{k}" for name in ("scale", "shift", "mean", "variance")]
        constants[f"w{k}"] = np.full((96, 96, 3, 3), 1e-3, np.float32)
        constants |= {name: np.ones(96, np.float32) for name in names}
        nodes.append(helper.make_node("Conv", [value, f"w{k}"], [f"h{k}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("BatchNormalization", [f"h{k}", *names], [f"y{k}"]))
        value = f"y{k}"
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["y"]))
    return saved(path, nodes, constants, x=(TensorProto.FLOAT, ["batch", 96, 4, 4]))


def test_the_second_who_loads_does_much_less(tmp_path: Path, cache: Path) -> None:
    path = deep(tmp_path / "model.onnx", layers=60)
    loaded(path)
    own_s, kept_s = (min(_cpu_s(path, keep_optimized=keeps) for _ in range(3)) for keeps in (False, True))
    assert kept_s < own_s / 2


def _cpu_s(path: Path, **options: Option) -> float:
    before_s = time.process_time()
    loaded(path, **options)
    return time.process_time() - before_s


def test_the_second_who_loads_compiles_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = convolutions(tmp_path / "model.onnx")
    loaded(path)

    def never(*_: object) -> None:
        raise AssertionError("it was compiled")

    openvino = importlib.import_module("openvino")
    for name in ("compile_model", "read_model"):
        monkeypatch.setattr(openvino.Core, name, never)
    loaded(path)
    kept(cache)[0].unlink()
    with pytest.raises(LoadFailed):
        loaded(path)
