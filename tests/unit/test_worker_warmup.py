"""The first executions: how many of which size."""

import numpy as np
import pytest

from partita.core.tensors import DataType, Signature, TensorSpec
from partita.worker.runtimes.interface import Batch
from partita.worker.runtimes.onnxruntime import OnnxRuntime
from partita.worker.warmup import warm_up

SIGNATURE = Signature(
    inputs=(TensorSpec("x", DataType.FP32, (3,)),), outputs=(TensorSpec("y", DataType.FP32, (3,)),)
)


@pytest.mark.parametrize(("again", "executed"), [(True, [1, 1, 4, 4]), (False, [1, 4])])
def test_a_quick_size_is_executed_again_where_that_says_more(again: bool, executed: list[int]) -> None:
    sizes: list[int] = []

    def run(batch: Batch, rows: int, size: int) -> tuple[Batch, int]:
        assert batch["x"].shape == (rows, 3)
        sizes.append(size)
        return {"y": np.zeros((rows, 3), np.float32)}, 0

    observed = warm_up(run, SIGNATURE, max_batch=4, dimensions={}, again=again)
    assert sizes == executed
    assert list(observed.outputs) == [1, 4]


def test_onnx_runtime_says_that_once_is_enough() -> None:
    assert OnnxRuntime.is_warm_at_once
