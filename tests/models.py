"""Tiny ONNX models for everybody's tests, made on the spot and small enough to load in milliseconds.

Every function writes one file and returns its path. Weights are fixed, so that tests can compute the
right answer themselves with `linear_weights` and numpy.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Float32 = NDArray[np.float32]
Axis = int | str


def linear_weights(inputs: int = 4, outputs: int = 3) -> tuple[Float32, Float32]:
    """Weights (inputs, outputs) and bias (outputs,) of the linear models, float32."""
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((inputs, outputs)).astype(np.float32)
    return weight, rng.standard_normal(outputs).astype(np.float32)


def linear(path: Path, inputs: int = 4, outputs: int = 3, batch: Axis = "batch") -> Path:
    """Write ``y = x @ W + b``: x (batch, inputs), y (batch, outputs), float32."""
    weight, bias = linear_weights(inputs, outputs)
    return _save(
        path,
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        inputs=[("x", TensorProto.FLOAT, [batch, inputs])],
        outputs=[("y", TensorProto.FLOAT, [batch, outputs])],
        constants={"w": weight, "b": bias},
    )


def fixed_linear(path: Path, batch: int, inputs: int = 4, outputs: int = 3) -> Path:
    """Write the linear model with its batch axis frozen at `batch`."""
    return linear(path, inputs, outputs, batch)


def mlp(path: Path, inputs: int = 64, hidden: int = 32, outputs: int = 10) -> Path:
    """Write a two-layer network with a softmax: x (batch, inputs), y (batch, outputs), float32."""
    first, second = linear_weights(inputs, hidden), linear_weights(hidden, outputs)
    return _save(
        path,
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h1"]),
            helper.make_node("Relu", ["h1"], ["h2"]),
            helper.make_node("Gemm", ["h2", "w2", "b2"], ["h3"]),
            helper.make_node("Softmax", ["h3"], ["y"], axis=1),
        ],
        inputs=[("x", TensorProto.FLOAT, ["batch", inputs])],
        outputs=[("y", TensorProto.FLOAT, ["batch", outputs])],
        constants={"w1": first[0], "b1": first[1], "w2": second[0], "b2": second[1]},
    )


def two_inputs(path: Path, width: int = 4, rows: int = 16) -> Path:
    """Write ``y = x + table[index]`` and ``twice = 2 * index``.

    x (batch, width) float32, index (batch,) int64 below `rows`; y (batch, width) float32, twice (batch,)
    int64. `two_inputs_table` is the table.
    """
    return _save(
        path,
        [
            helper.make_node("Gather", ["table", "index"], ["row"], axis=0),
            helper.make_node("Add", ["x", "row"], ["y"]),
            helper.make_node("Add", ["index", "index"], ["twice"]),
        ],
        inputs=[("x", TensorProto.FLOAT, ["batch", width]), ("index", TensorProto.INT64, ["batch"])],
        outputs=[("y", TensorProto.FLOAT, ["batch", width]), ("twice", TensorProto.INT64, ["batch"])],
        constants={"table": two_inputs_table(width, rows)},
    )


def two_inputs_table(width: int = 4, rows: int = 16) -> Float32:
    """Rows that `two_inputs` adds, (rows, width) float32."""
    return np.arange(rows * width, dtype=np.float32).reshape(rows, width)


def sequence_sum(path: Path, width: int = 4) -> Path:
    """Write ``total = x.sum(axis=1)`` and ``doubled = 2 x``: x (batch, length, width), any length."""
    return _save(
        path,
        [
            helper.make_node("ReduceSum", ["x", "axis"], ["total"], keepdims=0),
            helper.make_node("Add", ["x", "x"], ["doubled"]),
        ],
        inputs=[("x", TensorProto.FLOAT, ["batch", "length", width])],
        outputs=[
            ("total", TensorProto.FLOAT, ["batch", width]),
            ("doubled", TensorProto.FLOAT, ["batch", "length", width]),
        ],
        constants={"axis": np.array([1], dtype=np.int64)},
    )


def unbatched(path: Path) -> Path:
    """Write ``y = x + x`` for one vector without a batch axis: x (4,), y (4,), float32."""
    return _save(
        path,
        [helper.make_node("Add", ["x", "x"], ["y"])],
        inputs=[("x", TensorProto.FLOAT, [4])],
        outputs=[("y", TensorProto.FLOAT, [4])],
        constants={},
    )


def slow(path: Path, width: int = 256, layers: int = 400) -> Path:
    """Write a long chain of square products, x, y (batch, width): some 3 ms for 1 item, 30 ms for 32."""
    weight = np.eye(width, dtype=np.float32)[::-1].copy()
    names = ["x", *(f"h{i}" for i in range(layers - 1)), "y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    return _save(
        path,
        nodes,
        inputs=[("x", TensorProto.FLOAT, ["batch", width])],
        outputs=[("y", TensorProto.FLOAT, ["batch", width])],
        constants={"w": weight},
    )


def _save(
    path: Path,
    nodes: list[Any],
    *,
    inputs: list[tuple[str, int, list[Axis]]],
    outputs: list[tuple[str, int, list[Axis]]],
    constants: dict[str, NDArray[Any]],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save_model(model, path)
    return path
