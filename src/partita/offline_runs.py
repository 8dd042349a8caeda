"""How many segments an offline run hands in at once, and how many are in flight, as swift as the model is.

Pure: whoever hands them in says what was answered, and when.
"""

RUN_S = 0.02
"""Segments that are answered within this long are handed in as one request. What a request costs besides its
items is some tenths of a millisecond."""
LONGEST_RUN = 16
"""Segments of one request at most: the instances share them out as they do all others."""
RUN_BYTES = 4 << 20
"""Inputs of a request of several segments at most: next to larger ones what it costs besides is nothing."""
RUNS_AHEAD = 3
"""One is executed, one waits, and one is on its way."""


def most_in_flight(segment_bytes: int, *, ahead: int, most: int) -> int:
    """Return how many segments may be in flight, of `most` that there is room for; `ahead` at the least."""
    return max(ahead, min(most, RUNS_AHEAD * (RUN_BYTES // max(1, segment_bytes))))


class Runs:
    """Which segments are handed in next: single ones, then runs of as many as are answered in `RUN_S`."""

    def __init__(self, *, ahead: int, most: int, alone: bool = False) -> None:
        """`ahead` segments are in flight at least, `most` at most; `alone`: always one by one."""
        assert 0 < ahead <= most, (ahead, most)
        self.length = 1
        self._ahead = ahead
        self._most = most
        self._alone = alone
        self._in_flight = 0
        self._answered = 0
        self._first_s: float | None = None

    def next(self, left: int) -> int:
        """Return how many segments to hand in now of those that are left; 0 = wait for an answer first."""
        count = min(self.length, -(-left // RUNS_AHEAD))  # to the end there is something for everybody
        room = max(self._ahead, min(RUNS_AHEAD * self.length, self._most)) - self._in_flight
        return count if room >= count or not self._in_flight else 0

    def handed_in(self, segments: int) -> None:
        """So many are on their way, in one request."""
        self._in_flight += segments

    def answered(self, segments: int, now_s: float) -> None:
        """The oldest request is answered."""
        self._in_flight -= segments
        if self._alone:
            return
        if self._first_s is None:
            self._first_s = now_s
            return
        self._answered += segments
        pace = self._answered / max(now_s - self._first_s, 1e-9)
        longest = min(LONGEST_RUN, 2 * self.length, self._most // RUNS_AHEAD, int(pace * RUN_S))
        self.length = max(1, longest)

    def one_by_one(self) -> None:
        """From now on every segment is a request of its own."""
        self._alone, self.length = True, 1
