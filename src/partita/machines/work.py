"""What the machines move about: jobs that wait, and batches that run."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


class Job:
    """One request's items in the queue of one member model.

    Items are numbered 0 … n−1. Every item is waiting, running or settled, and a job that has ended
    (answered, failed or cancelled) has none waiting. Owned by the dispatcher that admitted it.
    """

    __slots__ = (
        "admitted_s",
        "deaths",
        "ended",
        "is_partly_answered",
        "lane",
        "n_items",
        "next_item",
        "owner",
        "running",
        "settled",
    )

    def __init__(self, owner: Any, n_items: int, lane: Hashable, admitted_s: float) -> None:
        self.owner = owner
        """The request that this job is part of; never looked into here."""
        self.n_items = n_items
        self.lane = lane
        """Only jobs of one lane (equal item shapes) share a batch."""
        self.admitted_s = admitted_s
        self.next_item = 0
        """First item that has never been dispatched."""
        self.running = 0
        self.settled = 0
        self.deaths = 0
        """Worker deaths that items of this job were being executed in."""
        self.ended = False
        self.is_partly_answered = False
        """Whether a part of its answer is with its client, so that it cannot be tried again."""

    @property
    def has_started(self) -> bool:
        """Whether some item has been dispatched."""
        return self.next_item > 0


Piece = tuple[Job, int, int]
"""A run of items of one job: (job, first item, number of items)."""


class Batch:
    """Pieces of one lane, executed together by one instance."""

    __slots__ = ("batch_id", "dispatched_s", "executions", "instance", "items", "pieces")

    def __init__(
        self,
        batch_id: int,
        instance: int,
        pieces: list[Piece],
        items: int,
        executions: tuple[int, ...],
        dispatched_s: float,
    ) -> None:
        self.batch_id = batch_id
        self.instance = instance
        self.pieces = pieces
        self.items = items
        self.executions = executions
        """Micro-batch sizes to run one after another; empty = all items at once."""
        self.dispatched_s = dispatched_s


@dataclass(frozen=True, slots=True)
class Lost:
    """What a lost instance leaves: jobs that cannot be tried again. The rest was put back."""

    failed: list[Job]
    executing: Batch | None
    touched: list[Job]
    """Every job with a piece in the lost instance, for recycling what those pieces held."""
