"""The first executions: how many of which size."""

import numpy as np
import pytest

from partita.core.tensors import DataType, Signature, TensorSpec
from partita.worker import warmup
from partita.worker.runtimes.interface import Batch
from partita.worker.runtimes.onnxruntime import OnnxRuntime

SIGNATURE = Signature(
    inputs=(TensorSpec("x", DataType.FP32, (3,)),), outputs=(TensorSpec("y", DataType.FP32, (3,)),)
)


class Executed:
    """Executes on a clock of its own, and notes the sizes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._now_s = 0.0
        self.sizes: list[int] = []

    def perf_counter(self) -> float:
        return self._now_s

    def run(self, batch: Batch, rows: int, size: int) -> tuple[Batch, int]:
        assert batch["x"].shape == (rows, 3)
        self.sizes.append(size)
        self._now_s += self._seconds * size
        return {"y": np.zeros((rows, 3), np.float32)}, 0


def sizes(
    monkeypatch: pytest.MonkeyPatch, seconds: float, *, at_once: bool, memory_at: tuple[int, ...] = ()
) -> list[int]:
    """Return the sizes of the executions, where an item takes so long."""
    executed = Executed(seconds)
    monkeypatch.setattr(warmup, "time", executed)
    observed = warmup.warm_up(
        executed.run, SIGNATURE, max_batch=8, dimensions={}, memory_at=memory_at, is_warm_at_once=at_once
    )
    assert list(observed.outputs) == sorted(set(executed.sizes))
    assert observed.error is None
    return executed.sizes


def test_a_quick_size_is_executed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(monkeypatch, 0.01, at_once=False) == [1, 1, 8, 8]
    assert sizes(monkeypatch, 0.1, at_once=False) == [1, 1, 8]


@pytest.mark.parametrize(("seconds", "executed"), [(0.01, [1, 8]), (0.06, [1, 4]), (1.0, [1, 2])])
def test_what_is_warm_at_once_is_executed_once_with_no_more_items_than_take_a_moment(
    seconds: float, executed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sizes(monkeypatch, seconds, at_once=True) == executed


def test_the_sizes_whose_memory_is_asked_for_are_executed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(monkeypatch, 0.01, at_once=True, memory_at=(3,)) == [1, 1, 3, 3, 8, 8]


def test_onnx_runtime_is_warm_at_once() -> None:
    assert OnnxRuntime.is_warm_at_once
