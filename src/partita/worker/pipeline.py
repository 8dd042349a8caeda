"""One execution: preprocess, infer, postprocess, each where it exists."""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np

from partita.core.errors import InferenceFailed
from partita.worker.handlers import Stages, as_batch, split_items
from partita.worker.network import Network
from partita.worker.runtimes.interface import Batch

Run = Callable[[Batch, int, int], tuple[Batch, int]]
"""From a batch, its rows and the size to execute it as, to its outputs and the inference's time in ns."""


def make_pipeline(network: Network, stages: Stages, *, batched: bool) -> Run:
    """Return what runs one execution; without any stage nothing stands between memory and network."""
    if stages.preprocess or stages.infer or stages.postprocess:
        return _Staged(network, stages, batched=batched)
    infer = network.run

    def bare(batch: Batch, rows: int, size: int) -> tuple[Batch, int]:
        started = perf_counter_ns()
        outputs = infer(batch, rows, size)
        return outputs, perf_counter_ns() - started

    return bare


class _Staged:
    __slots__ = ("_batched", "_network", "_stages")

    def __init__(self, network: Network, stages: Stages, *, batched: bool) -> None:
        self._network = network
        self._stages = stages
        self._batched = batched

    def __call__(self, batch: Batch, rows: int, size: int) -> tuple[Batch, int]:
        stages = self._stages
        if stages.preprocess:
            items = split_items(batch, rows, batched=self._batched)
            batch = as_batch(stages.preprocess(items), batched=self._batched, stage="preprocess")
        started = perf_counter_ns()
        outputs = stages.infer(batch) if stages.infer else self._infer(batch, rows, size)
        infer_ns = perf_counter_ns() - started
        if stages.postprocess:
            outputs = as_batch(stages.postprocess(outputs), batched=self._batched, stage="postprocess")
        return outputs, infer_ns

    def _infer(self, batch: Batch, rows: int, size: int) -> Batch:
        """Run the network; a preprocess may have made more or fewer rows than there are items."""
        if not self._batched:
            return self._network.run(batch, rows, size)
        made = {name: array.shape[0] if array.ndim else 0 for name, array in batch.items()}
        counts = set(made.values())
        if len(counts) != 1:
            raise InferenceFailed(f"preprocess returned arrays of different numbers of rows: {made}")
        count = counts.pop()
        batch = {name: np.ascontiguousarray(array) for name, array in batch.items()}
        return self._network.run(batch, count, size if count == rows else count)
