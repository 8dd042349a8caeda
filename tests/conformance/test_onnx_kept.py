"""Optimized models that are kept: the answers are those of the model itself, bit by bit, or it is loaded."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita.core.errors import LoadFailed
from partita.system.artefacts import kept as made_once
from partita.worker.runtimes import kept_models, onnx_kept
from partita.worker.runtimes.interface import LoadRequest, Option
from partita.worker.runtimes.onnxruntime import OnnxRuntime, load
from partita.worker.warmup import generated_inputs
from tests import models
from tests.conformance.kept_conformance import KeptConformance, answer_alike
from tests.conformance.test_runtimes import NETWORKS, external

RNG = np.random.default_rng(3)
FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, Any],
    *,
    x: tuple[int, list[Any]] = (FLOAT, ["batch", 64]),
    y: tuple[int, list[Any]] = (FLOAT, ["batch", None]),
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> Path:
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", *y)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions)), path)
    return path


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def convolutions(path: Path) -> Path:
    """Write layers whose weights get the CPU's own layout, with a normalisation that is folded."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["h1"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["h1", "scale", "shift", "mean", "variance"], ["h2"]),
        helper.make_node("Relu", ["h2"], ["h3"]),
        helper.make_node("Conv", ["h3", "w2"], ["h4"], strides=[2, 2]),
        helper.make_node("Add", ["h4", "b"], ["h5"]),
        helper.make_node("GlobalAveragePool", ["h5"], ["h6"]),
        helper.make_node("Flatten", ["h6"], ["y"]),
    ]
    constants = {"w1": normal(32, 3, 3, 3), "w2": normal(64, 32, 3, 3), "b": normal(64, 1, 1)}
    constants |= {name: np.abs(normal(32)) for name in ("scale", "shift", "mean", "variance")}
    return saved(path, nodes, constants, x=(FLOAT, ["batch", 3, 16, 16]))


def attention(path: Path) -> Path:
    """Write a normalisation, a softmax and a GELU in pieces, which are put together."""
    constants: dict[str, Any] = {
        "w1": normal(64, 64),
        "w2": normal(64, 64),
        "two": np.array([2.0], np.float32),
        "tiny": np.array([1e-5], np.float32),
        "root": np.array([np.sqrt(2)], np.float32),
        "half": np.array([0.5], np.float32),
        "one": np.array([1.0], np.float32),
        "scale": normal(64),
        "shift": normal(64),
    }
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("ReduceMean", ["x"], "mean", {"axes": [-1]}),
        ("Sub", ["x", "mean"], "centred", {}),
        ("Pow", ["centred", "two"], "squared", {}),
        ("ReduceMean", ["squared"], "variance", {"axes": [-1]}),
        ("Add", ["variance", "tiny"], "padded", {}),
        ("Sqrt", ["padded"], "deviation", {}),
        ("Div", ["centred", "deviation"], "normal", {}),
        ("Mul", ["normal", "scale"], "scaled", {}),
        ("Add", ["scaled", "shift"], "shifted", {}),
        ("MatMul", ["shifted", "w1"], "queries", {}),
        ("Div", ["queries", "root"], "q1", {}),
        ("Erf", ["q1"], "q2", {}),
        ("Add", ["q2", "one"], "q3", {}),
        ("Mul", ["queries", "q3"], "q4", {}),
        ("Mul", ["q4", "half"], "gelu", {}),
        ("MatMul", ["gelu", "w2"], "scores", {}),
        ("Softmax", ["scores"], "y", {"axis": -1}),
    ]
    return saved(
        path,
        [helper.make_node(op, given, [output], **more) for op, given, output, more in steps],
        constants,
        x=(FLOAT, ["batch", 5, 64]),
        y=(FLOAT, ["batch", 5, 64]),
    )


def half_precision(path: Path) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    weights = {"w": normal(64, 64).astype(np.float16)}
    return saved(path, nodes, weights, x=(HALF, ["batch", 64]), y=(HALF, ["batch", 64]))


def quantised(path: Path) -> Path:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "sy", "zx"], ["hq"]),
        helper.make_node("DequantizeLinear", ["hq", "sy", "zx"], ["y"]),
    ]
    constants: dict[str, Any] = {
        "w": RNG.integers(-127, 127, (64, 64)).astype(np.int8),
        "sx": np.float32(0.02),
        "sw": np.float32(0.01),
        "sy": np.float32(0.1),
        "zx": np.uint8(128),
        "zw": np.int8(0),
    }
    return saved(path, nodes, {name: np.asarray(value) for name, value in constants.items()})


def branches(path: Path) -> Path:
    """Write an If, each branch with weights of its own and one of those outside."""

    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["x", f"w_{name}"], [f"h_{name}"]),
            helper.make_node("Add", [f"h_{name}", "shift"], [f"y_{name}"]),
        ]
        outputs = [helper.make_tensor_value_info(f"y_{name}", FLOAT, None)]
        return helper.make_graph(
            nodes, name, [], outputs, [numpy_helper.from_array(normal(64, 64), f"w_{name}")]
        )

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["is_more"]),
        helper.make_node("If", ["is_more"], ["y"], then_branch=branch("then"), else_branch=branch("else")),
    ]
    return saved(path, nodes, {"shift": normal(64), "zero": np.asarray(np.float32(0))}, y=(FLOAT, [None, 64]))


def sequences(path: Path) -> Path:
    """Write a model with a sequence within, and a large constant of texts."""
    texts = np.array([f"word {number}" for number in range(500)], dtype=object)
    nodes = [
        helper.make_node("Split", ["x"], ["left", "right"], axis=1),
        helper.make_node("SequenceConstruct", ["left", "right"], ["both"]),
        helper.make_node("SequenceAt", ["both", "which"], ["half"]),
        helper.make_node("MatMul", ["half", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["texts", "best"], ["y"]),
    ]
    constants = {"w": normal(32, 500), "which": np.asarray(np.int64(1)), "texts": texts}
    return saved(path, nodes, constants, y=(TensorProto.STRING, ["batch"]))


def with_a_function(path: Path) -> Path:
    body = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
    layer = helper.make_function("own", "Layer", ["a", "b"], ["d"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Layer", ["x", "w1"], ["h"], domain="own"),
        helper.make_node("Layer", ["h", "w2"], ["y"], domain="own"),
    ]
    return saved(path, nodes, {"w1": normal(64, 64), "w2": normal(64, 16)}, functions=(layer,))


def folded(path: Path) -> Path:
    """Write constants that are computed when the model is optimized, among them denormal numbers."""
    nodes = [
        helper.make_node("Mul", ["small", "smaller"], ["smallest"]),
        helper.make_node("MatMul", ["w1", "w2"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["h1"]),
        helper.make_node("Mul", ["h1", "smallest"], ["h2"]),
        helper.make_node("Mul", ["h2", "large"], ["y"]),
    ]
    constants: dict[str, Any] = {
        "small": np.full(64, 1e-20, np.float32),
        "smaller": np.full(64, 1e-20, np.float32),
        "large": np.full(64, 1e30, np.float32),
        "w1": normal(64, 300),
        "w2": normal(300, 64),
    }
    return saved(path, nodes, constants)


MORE: list[Callable[[Path], Path]] = [
    *(convolutions, attention, half_precision, quantised, branches, sequences, with_a_function, folded),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder of its own, where a model of any size is kept."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_models, "LEAST_BYTES", 0)
    return tmp_path / "cache" / onnx_kept.KIND


def loaded(path: Path, **options: Option) -> OnnxRuntime:
    return load(LoadRequest(path=str(path), max_batch=8, options=options))


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*/model.onnx"))


def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which every file is appended that ONNX Runtime is given."""
    files: list[Path] = []
    make = ort.InferenceSession

    def remembering(path: str, *args: Any, **kwargs: Any) -> Any:
        files.append(Path(path))
        return make(path, *args, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", remembering)
    return files


@pytest.mark.parametrize("model", [external, models.two_inputs, models.unbatched])
class TestOnnxRuntimeKept(KeptConformance):
    """What the second who loads a model gets."""

    load = staticmethod(loaded)
    kept = staticmethod(kept)


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"optimization": "basic"}, {"denormals_as_zero": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [*NETWORKS, *MORE])
def test_the_answers_are_the_models_own_bit_by_bit(
    model: Callable[[Path], Path], options: dict[str, Option], tmp_path: Path, cache: Path
) -> None:
    path = model(tmp_path / "model.onnx")
    own = loaded(path, keep_optimized=False, **options)
    assert not kept(cache)
    first, second = loaded(path, **options), loaded(path, **options)
    assert kept(cache)
    answer_alike(own, [first, second])


def test_only_the_first_optimizes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external(tmp_path / "model.onnx")
    files = opened(monkeypatch)
    loaded(path)
    assert files[0] == path
    [place] = kept(cache)
    files.clear()
    loaded(path)
    assert files == [place]


def test_ways_to_optimize_are_kept_side_by_side(tmp_path: Path, cache: Path) -> None:
    path = models.mlp(tmp_path / "model.onnx")
    ways: list[dict[str, Option]] = [{"optimization": "basic"}, {"denormals_as_zero": True}, {"spin": False}]
    for options in ({}, *ways):
        loaded(path, **options)
    assert len(kept(cache)) == 3


@pytest.mark.parametrize("which", ["model.onnx", "model.data"])
def test_a_model_that_was_changed_is_optimized_anew(which: str, tmp_path: Path, cache: Path) -> None:
    path = external(tmp_path / "model.onnx")
    loaded(path)
    [place] = kept(cache)
    before = place.stat().st_ino
    file = tmp_path / which
    content = bytearray(file.read_bytes())
    if which == "model.data":
        content[:4] = np.float32(100.0).tobytes()
    was = file.stat()
    file.write_bytes(bytes(content))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    runtime, own = loaded(path), loaded(path, keep_optimized=False)
    assert kept(cache) == [place]
    assert place.stat().st_ino != before
    inputs = generated_inputs(own.signature, 3, {})
    assert runtime.infer(inputs)["y"].tobytes() == own.infer(inputs)["y"].tobytes()


def test_what_another_library_or_cpu_made_is_not_loaded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.mlp(tmp_path / "model.onnx")
    loaded(path)
    monkeypatch.setattr(kept_models, "instructions", lambda: frozenset({"another"}))
    loaded(path)
    assert len(kept(cache)) == 2


def test_what_was_made_before_the_machines_last_start_is_not_loaded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.mlp(tmp_path / "model.onnx")
    loaded(path)
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(kept_models, "_BOOT_ID", tmp_path / "boot_id")
    loaded(path)
    assert len(kept(cache)) == 2


def test_a_small_one_is_only_kept_to_be_shared(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.mlp(tmp_path / "model.onnx")
    monkeypatch.setattr(kept_models, "LEAST_BYTES", 10 << 20)
    loaded(path)
    assert not kept(cache)
    assert not loaded(path, share_weights=True).remarks
    assert kept(cache)


@pytest.mark.parametrize("which", ["long name", "no file of that name"])
def test_weights_in_files_that_are_not_told_for_sure_are_not_kept(
    which: str, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "model.onnx"
    name = "w" * 130 if which == "long name" else "weights"
    onnx.save_model(
        onnx.load(models.mlp(path)), path, save_as_external_data=True, location=name, size_threshold=0
    )
    if which == "long name":
        assert loaded(path, share_weights=True).remarks == ("the optimized model cannot be kept",)
    else:
        (tmp_path / name).unlink()
        with pytest.raises(LoadFailed):
            loaded(path)
    assert not kept(cache)


@pytest.mark.parametrize("harm", ["short", "gone", "one bit", "garbage", "not said of what"])
def test_what_is_broken_is_made_anew(harm: str, tmp_path: Path, cache: Path) -> None:
    path = models.linear(tmp_path / "model.onnx", inputs=64, outputs=64)
    own = loaded(path)
    [place] = kept(cache)
    weights = place.with_name("weights.bin")
    if harm == "gone":
        weights.unlink()
    elif harm == "short":
        weights.write_bytes(weights.read_bytes()[:100])
    elif harm == "one bit":
        content = bytearray(weights.read_bytes())
        content[3] ^= 0x40
        weights.write_bytes(bytes(content))
    elif harm == "garbage":
        place.write_bytes(b"no model")
    else:
        place.with_name("files.json").write_text("[")
    inputs = generated_inputs(own.signature, 3, {})
    for _ in range(2):
        runtime = loaded(path)
        assert runtime.infer(inputs)["y"].tobytes() == own.infer(inputs)["y"].tobytes()
    assert runtime.remarks == ()
    assert kept(cache) == [place]
    assert place.read_bytes() != b"no model"


def test_what_does_not_load_is_told_and_made_anew(tmp_path: Path, cache: Path) -> None:
    path = models.linear(tmp_path / "model.onnx", inputs=64, outputs=64)
    loaded(path)
    [place] = kept(cache)
    place.write_bytes(b"no model")
    record = place.with_name("files.json")
    before, made = json.loads(record.read_text())
    states = kept_models._state([place.with_name(name) for name, *_ in made], settle=False)
    now = [[name, *state[1:]] for (name, *_), state in zip(made, states, strict=True)]
    record.write_text(json.dumps([before, now]))
    assert "does not load" in loaded(path).remarks[0]
    assert loaded(path).remarks == ()
    assert place.read_bytes() != b"no model"


def test_parts_of_two_models_are_never_put_together(tmp_path: Path, cache: Path) -> None:
    path = models.linear(tmp_path / "model.onnx")
    loaded(path)
    [place] = kept(cache)

    def replaced_meanwhile(file: Path, settings: object) -> str:
        place.with_name("files.json").write_text("[[], []]")
        return "session"

    request = LoadRequest(path=str(path))
    assert onnx_kept.kept_session(path, request, ort.SessionOptions, replaced_meanwhile) is None


def test_a_model_that_changes_while_it_is_optimized_is_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.linear(tmp_path / "model.onnx")
    write = onnx_kept._is_written

    def changed(file: Path, *given: Any) -> bool:
        path.write_bytes(path.read_bytes())
        return write(file, *given)

    monkeypatch.setattr(onnx_kept, "_is_written", changed)
    assert "being changed" in loaded(path).remarks[0]
    assert not kept(cache)


def test_a_cache_folder_that_cannot_be_written_to_is_told_and_does_no_harm(
    tmp_path: Path, cache: Path
) -> None:
    cache.parent.write_text("not a folder")
    runtime = loaded(models.linear(tmp_path / "model.onnx"))
    assert "not kept" in runtime.remarks[0]
    assert runtime.infer({"x": np.ones((2, 4), np.float32)})["y"].shape == (2, 3)


def test_a_full_disk_is_told_and_does_no_harm(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    runtime = loaded(models.linear(tmp_path / "model.onnx"))
    assert "no room" in runtime.remarks[0]
    assert not kept(cache)


def test_a_disk_that_is_full_before_all_is_written_is_tried_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.linear(tmp_path / "model.onnx")

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(onnx_kept, "_is_written", lambda *_: False)
        patched.setattr(os, "posix_fallocate", full)
        assert "No space left" in loaded(path).remarks[0]
    assert loaded(path).remarks == ()
    assert kept(cache)


def test_another_who_does_not_end_is_not_waited_for_for_ever(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.linear(tmp_path / "model.onnx")
    monkeypatch.setattr(kept_models, "_WAIT_S", 0.0)
    remarks: list[str] = []

    def opening(file: Path, settings: object) -> None:
        raise AssertionError("another does that")

    def make(_: Path) -> None:
        remarks.extend(loaded(path).remarks)

    boot = kept_models._BOOT_ID.read_text().strip()
    way = onnx_kept.preparation(path, LoadRequest(path=str(path)), ort.SessionOptions, opening)
    made_once(cache / boot, kept_models._key(path, way), make)
    assert "another process" in remarks[0]
    assert not kept(cache)


def test_a_model_that_cannot_be_kept_is_tried_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.linear(tmp_path / "model.onnx")
    monkeypatch.setattr(onnx_kept, "_tensors", lambda session: [(id(session),)])
    files = opened(monkeypatch)
    loaded(path)
    assert len(files) == 3
    loaded(path)
    assert files[3:] == [path]
    assert not kept(cache)


@pytest.mark.parametrize("content", [b"no model at all", b""])
def test_a_file_that_is_no_model_is_refused_as_ever(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(LoadFailed, match=r"cannot load .*model\.onnx"):
        loaded(path)
