"""Instances as the dispatcher sees them, and how items are shared out among them."""

from collections import deque

from partita.machines.work import Batch


class Seat:
    """One instance as the dispatcher sees it: what it may take, and what it has in hand."""

    __slots__ = (
        "batch",
        "batches",
        "executions",
        "instance",
        "micro_batch",
        "retiring",
        "started_s",
        "threads",
    )

    def __init__(self, instance: int, threads: int, batch: int, executions: tuple[int, ...]) -> None:
        self.instance = instance
        self.threads = threads
        self.change(batch, executions)
        self.batches: deque[Batch] = deque()
        """Dispatched and not finished: the first executes, a second waits in the worker's channel."""
        self.started_s = 0.0
        """When the first of them began to execute, as far as the head can know."""

    def change(self, batch: int, executions: tuple[int, ...]) -> None:
        """Take batches of this size from now on."""
        self.batch = batch
        self.executions = executions
        self.micro_batch = min(max(executions), batch)
        self.retiring = False


def shares(items: int, capacities: list[int]) -> list[int]:
    """Partition items over instances in proportion to their b, none above it (largest remainder)."""
    total = sum(capacities)
    exact = [items * c / total for c in capacities]
    shares = [int(x) for x in exact]
    left = items - sum(shares)
    by_remainder = sorted(range(len(exact)), key=lambda j: (shares[j] - exact[j], j))
    for j in by_remainder:
        if left and shares[j] < capacities[j]:
            shares[j] += 1
            left -= 1
    return shares


def split(items: int, micro_batch: int) -> tuple[int, ...]:
    """Return the sizes of the executions that items are run as, full micro-batches first."""
    full, rest = divmod(items, micro_batch)
    return (micro_batch,) * full + ((rest,) if rest else ())
