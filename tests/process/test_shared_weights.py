"""Weights that instances share are in memory once."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita.system.memory import private_bytes
from tests.worker_driver import worker

pytestmark = pytest.mark.process

WIDTH = 2000
WEIGHT_BYTES = WIDTH * WIDTH * 4


def dense(path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32) / WIDTH
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in ("x", "y"))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "dense", [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def second_private_bytes(path: Path, **options: bool) -> int:
    """Return what the second of two instances shares with nobody, once both have answered."""
    x = np.ones((4, WIDTH), np.float32)
    with worker(path, options=options) as first, worker(path, options=options) as second:
        for driver in (first, second):
            driver.start()
            driver.run([x])
        held = private_bytes(second.process.pid)
    assert held is not None
    return held


def test_onnxruntime_maps_the_weights_that_it_is_to_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    path = dense(tmp_path / "dense.onnx")
    saved = second_private_bytes(path) - second_private_bytes(path, share_weights=True)
    assert saved > 0.8 * WEIGHT_BYTES
