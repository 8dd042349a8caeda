"""When the workers that a model is measured with may execute: at once, or in turn with others."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Protocol, TypeVar

from partita.core.clock import Clock
from partita.core.errors import ConnectionClosed
from partita.profiling.solo import SoloWorker
from partita.system.channels import Channel
from partita.wire.tuning import Done, Go, Spent, Want, decode_to_measuring, encode

_READ_S = 0.001
Answer = TypeVar("Answer", Go, Spent)


@dataclass(slots=True)
class Turn:
    """One execution. When it is over: how long, and how often, it was stopped on the way."""

    stopped_s: float = 0.0
    stops: int = 0


class Turns(Protocol):
    """Who says when a worker may execute."""

    def turn(
        self, worker: SoloWorker, *, expected_s: float | None = None, spoiled: bool = False
    ) -> AbstractContextManager[Turn]:
        """Have the worker's cores while the block executes one batch, or waits for it to load."""


class AtOnce:
    """Nobody else is there."""

    @contextmanager
    def turn(
        self,
        worker: SoloWorker,  # noqa: ARG002
        *,
        expected_s: float | None = None,  # noqa: ARG002
        spoiled: bool = False,  # noqa: ARG002
    ) -> Iterator[Turn]:
        """Begin at once."""
        yield Turn()


class AskedTurns:
    """Asks the head for every turn. `now_s` is a clock that stands still while others have theirs."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._away_s = 0.0

    def now_s(self) -> float:
        """Time spent measuring, not waiting, from some beginning on."""
        return self._clock.now_s() - self._away_s

    def wall_s(self) -> float:
        """The time of day, seconds since 1970."""
        return self._clock.wall_s()

    @contextmanager
    def turn(
        self, worker: SoloWorker, *, expected_s: float | None = None, spoiled: bool = False
    ) -> Iterator[Turn]:
        """Ask the head, and wait. Raises `ConnectionClosed` when it is gone or wants no more."""
        is_active = worker.ready is None
        while is_active and not worker.has_read:
            sleep(_READ_S)  # it must have seen to dying with us before it may be stopped
        asked_s = self._clock.now_s()
        wish = Want(
            pid=worker.pid,
            cores=worker.cores,
            is_active=is_active,
            expected_s=expected_s,
            spoiled=spoiled,
        )
        self._channel.send(encode(wish))
        if not is_active:
            self._expect(Go)
            self._away_s += self._clock.now_s() - asked_s
        turn = Turn()
        try:
            yield turn
        finally:
            self._channel.send(encode(Done()))
            spent = self._expect(Spent)
            turn.stopped_s, turn.stops = spent.stopped_s, spent.stops
            self._away_s += spent.stopped_s

    def _expect(self, kind: type[Answer]) -> Answer:
        message = decode_to_measuring(self._channel.receive()[0])
        if not isinstance(message, kind):
            raise ConnectionClosed(f"the head said {message} instead of {kind.__name__}")
        return message
