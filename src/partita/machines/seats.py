"""Instances as the dispatcher sees them, and how items are shared out among them."""

from collections import deque

from partita.machines.work import Batch

MOST_EXECUTIONS = 32
"""In one turn."""
_NEWEST = 0.25
"""Weight of the newest batch in what executions have taken lately."""


class Seat:
    """One instance as the dispatcher sees it: what it may take, and what it has in hand."""

    __slots__ = (
        "batch",
        "batches",
        "execution_s",
        "executions",
        "heard_s",
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
        self.heard_s = 0.0
        """When it last gave a sign of life: it began to execute, or told a part of an answer."""
        self.execution_s = 0.0
        """What one full execution has taken lately, its part of handing it over included; 0 = not known."""

    def change(self, batch: int, executions: tuple[int, ...]) -> None:
        """Take batches of this size from now on."""
        self.batch = batch
        self.executions = executions
        self.micro_batch = min(max(executions), batch)
        self.retiring = False

    def turn(self, turn_s: float, waiting: int, seats: int) -> int:
        """Return how many items it takes where it executes in turns with others: one execution or more.

        As many executions as fit in the turn, judged by what they took, and never so many that the `seats`
        of its member could not share the `waiting` items again (guided self-scheduling).
        """
        if not self.execution_s or waiting <= self.micro_batch:
            return self.micro_batch
        share = -(-waiting // (seats * self.micro_batch))
        return self.micro_batch * max(1, min(int(turn_s / self.execution_s), share, MOST_EXECUTIONS))

    def took(self, batch: Batch, seconds: float) -> None:
        """Note how long a batch took, if its executions were full."""
        count = max(1, len(batch.executions))
        if batch.items >= count * self.micro_batch:
            newest = _NEWEST if self.execution_s else 1.0
            self.execution_s += (seconds / count - self.execution_s) * newest


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
