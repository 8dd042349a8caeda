"""Who is told what becomes of an instance, and of the requests that come."""

from typing import TYPE_CHECKING, Protocol

from partita.wire.messages import BatchDone, BatchFailed, PartDone

if TYPE_CHECKING:
    from partita.engine.instance import Instance


class Owner(Protocol):
    """Who is told what becomes of an instance."""

    def instance_ready(self, instance: "Instance") -> None:
        """It has loaded and warmed up."""

    def instance_lost(self, instance: "Instance", reason: str) -> None:
        """Its process is gone and reaped; it may come back."""

    def instance_gave_up(self, instance: "Instance", reason: str) -> None:
        """It will not come back."""

    def part_done(self, instance: "Instance", done: PartDone) -> None:
        """A part of an answer is there, while its batch is being executed."""

    def batch_done(self, instance: "Instance", done: BatchDone) -> None:
        """Its oldest batch was executed."""

    def batch_failed(self, instance: "Instance", failed: BatchFailed) -> None:
        """Its oldest batch raised."""


class ArrivalMeter(Protocol):
    """Is told of every request."""

    def arrived(self, items: int, depth: int) -> None:
        """A request was admitted; `depth` counts its items too."""
