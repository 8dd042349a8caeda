"""A few of the calls that an archive got: what it is measured with, for nobody else knows what it takes.

They are in the head's memory alone, within a limit, and go when the archive was measured.
"""

import random
import struct
from collections.abc import Sequence

import msgspec

from partita.core.clock import Clock
from partita.engine.request import Buffer, Request
from partita.wire.archive_call import unpack_answer, unpack_call

MOST_CALLS = 32
"""Calls that are kept; of more that come each is kept with the same probability."""
RIPE_S = 15.0
"""With fewer calls than that the archive is measured this long after the first."""
_LENGTH = struct.Struct("<I")
_OTHER = {"explain", "describe"}
"""Headers of calls that are no predictions."""


class CallSample:
    """Keeps at most `most_bytes` of calls that were answered well, drawn evenly from all that came."""

    def __init__(self, most_bytes: int, clock: Clock, *, most_calls: int = MOST_CALLS, seed: int = 0) -> None:
        self._calls: list[bytes] = []
        self._room = most_bytes
        self._most_calls = most_calls
        self._clock = clock
        self._random = random.Random(seed)
        self._first_s: float | None = None
        self.seen = 0
        """Calls that were answered since the sample is taken."""

    def look(self, request: Request, items: memoryview, outputs: Sequence[Buffer]) -> None:
        """Keep a request's first call, perhaps; `items` is the memory that it lies in."""
        self.seen += 1
        if len(self._calls) >= self._most_calls and self._random.random() * self.seen >= self._most_calls:
            return
        if not request.item_spans:
            return
        (start, *_), (size, *_) = request.item_spans[0]
        call = bytes(items[start + _LENGTH.size : start + size])
        if not _is_prediction(call, outputs):
            return
        if self._first_s is None:
            self._first_s = self._clock.now_s()
        self._keep(call)

    def _keep(self, call: bytes) -> None:
        """Keep a call, in place of another where there are enough; not one that is too large for the rest."""
        if len(self._calls) < self._most_calls:
            if len(call) <= self._room:
                self._room -= len(call)
                self._calls.append(call)
            return
        at = self._random.randrange(self._most_calls)
        grown = len(call) - len(self._calls[at])
        if grown <= self._room:
            self._room -= grown
            self._calls[at] = call

    @property
    def count(self) -> int:
        """Calls that are kept."""
        return len(self._calls)

    @property
    def is_ripe(self) -> bool:
        """Whether there are enough calls to measure with, or nothing gained by waiting for more."""
        if not self._calls or self._first_s is None:
            return False
        return self.seen >= self._most_calls or self._clock.now_s() >= self._first_s + RIPE_S

    def take(self) -> tuple[bytes, ...]:
        """Return the calls, which are forgotten here."""
        calls = tuple(self._calls)
        self._calls.clear()
        return calls


def _is_prediction(call: bytes, outputs: Sequence[Buffer]) -> bool:
    """Whether this is a call for a prediction that the handler has answered and not refused."""
    asked = unpack_call(call)
    if asked is None:  # a body alone, whose answer is one as well
        return True
    if asked.is_probe or any(name.lower() in _OTHER for name, _ in asked.headers):
        return False
    answers = memoryview(outputs[0])
    try:
        (size,) = _LENGTH.unpack_from(answers)
        answer = unpack_answer(answers[_LENGTH.size : _LENGTH.size + size])
    except (struct.error, msgspec.DecodeError):
        return False
    return not answer.error and answer.status < 400
