"""When a model may be measured beside its own traffic, so that its clients hardly notice (DESIGN §4).

The 99th percentile of the latency must not grow beyond `max_slowdown` times what it is without measuring.
That is the same as: at most one answer in a hundred may be slower than that. So measuring rests now and
then, to see what the percentile is without it, and every slower answer while it goes on is paid for from an
account: a hundred answers earn one slow one. Who has spent more than was earned pauses, each time for longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from partita.core.errors import InvalidInput

SLOW_SHARE = 0.01
"""Share of answers that may be slower than the limit: what a 99th percentile means."""

LEAST_IN_QUARTER = 100
"""Answers that a percentile can be told of."""


class Mode(StrEnum):
    """How the next execution may use the cores."""

    WAIT = "wait"
    """Not at all."""
    YIELD = "yield"
    """While nobody else executes on them: it is stopped as soon as anybody wants to."""
    HOLD = "hold"
    """Under a lease of its own, in turn with the others, who wait for its end."""


class Phase(StrEnum):
    """What measuring does now."""

    IDLE = "idle"
    """Nothing comes: measuring goes on freely."""
    RESTING = "resting"
    """It waits, and looks what the latencies are without it."""
    RUNNING = "running"
    """It goes on beside the traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRules:
    """How measuring treats the traffic. Raises `InvalidInput` for values that cannot be."""

    max_slowdown: float = 1.5
    """Most that the 99th percentile of the latency may grow, as a factor."""
    idle_s: float = 1.0
    """No answer and nothing in hand for this long: there is no traffic."""
    rest_s: float = 2.0
    longest_rest_s: float = 8.0
    """A rest ends when it has seen `rest_answers`, but takes no less and no more than this."""
    rest_answers: int = 200
    rest_every_s: float = 30.0
    """Of measuring beside traffic, until the next rest: the load may have changed."""
    first_pause_s: float = 4.0
    longest_pause_s: float = 60.0
    """Least length of the rest after too many slow answers; doubled when it happens again."""
    earned: float = 2.0
    """But not longer than the first once its answers have earned so many times `burst`: with traffic so
    dense the account is soon settled, and the percentile safe."""
    credit: float = 2.0
    burst: float = 10.0
    """Slow answers that are allowed from the start, and the most that can be saved up for."""
    slice_share: float = 0.5
    """An execution may hold the cores if it takes at most this share of what the percentile may grow by."""
    duty: float = 0.2
    """Share of the time in which executions may hold the cores."""
    starved_s: float = 10.0
    starved_share: float = 0.02
    """An execution that had less than this share of so long a time may hold the cores, whatever it takes."""

    def __post_init__(self) -> None:
        if not self.max_slowdown >= 1.0:
            raise InvalidInput(f"tuning: a slowdown of {self.max_slowdown:g}: must be 1 or more")
        assert 0.0 < self.duty <= 1.0, self
        assert 0.0 <= self.rest_s <= self.longest_rest_s, self


class TuningPace:
    """Tell it every `sample` of the traffic; it says how the next execution may use the cores."""

    def __init__(self, rules: PaceRules, *, now_s: float, batch: int = 1) -> None:
        self.rules = rules
        self.phase = Phase.RESTING
        self.pauses = 0
        """Rests that slow answers or a growing queue brought about."""
        self.reason = ""
        """Why it paused last."""
        self.p99_s: float | None = None
        """99th percentile of the latency without measuring, as far as known."""
        self.slow = 0
        self.answers = 0
        """Answers since the start, and of those while measuring the slow ones."""
        self._credit = rules.credit
        self._batch = batch
        self._queue_limit = batch
        self._traffic_s = now_s - rules.idle_s
        self._rest_began_s = now_s
        self._least_rest_s = rules.rest_s
        self._resting: list[float] = []
        self._resting_queue = 0
        self._ran_from_s = now_s
        self._pause_s = rules.first_pause_s
        self._may_earn = False
        """Whether this rest may end as soon as its answers have earned enough."""
        self._full = 0
        self._next_hold_s = now_s

    # --- events -----------------------------------------------------------------------------------

    def observe(self, now_s: float, latencies_s: Sequence[float], *, queued: int, depth: int) -> None:
        """Take what happened since the last call: answers' latencies; items waiting, and items in hand."""
        self.answers += len(latencies_s)
        if latencies_s or depth:
            self._traffic_s = now_s
        if self.phase is Phase.RUNNING:
            self._judge(now_s, latencies_s, queued)
            return
        self._credit = min(self.rules.burst, self._credit + SLOW_SHARE * len(latencies_s))
        if self.phase is Phase.RESTING:
            self._resting += latencies_s
            self._resting_queue = max(self._resting_queue, queued)
            self._rest_over(now_s)
        elif latencies_s or depth:  # traffic begins
            self._run(now_s) if self._is_known(now_s) else self._rest(now_s, self.rules.rest_s)

    def held(self, now_s: float, seconds: float) -> None:
        """An execution has held the cores for so long."""
        self._next_hold_s = now_s + seconds * (1.0 / self.rules.duty - 1.0)

    def _judge(self, now_s: float, latencies_s: Sequence[float], queued: int) -> None:
        assert self.p99_s is not None
        limit_s = self.rules.max_slowdown * self.p99_s
        slow = sum(latency_s > limit_s for latency_s in latencies_s)
        self.slow += slow
        self._credit = min(self.rules.burst, self._credit + SLOW_SHARE * len(latencies_s) - slow)
        self._full = self._full + 1 if queued > self._queue_limit else 0
        if self._credit < 0.0:
            self._pause(now_s, f"more answers than 1 in 100 took longer than {1000 * limit_s:.3g} ms")
            self._may_earn = True
        elif self._full > 1:
            self._pause(now_s, f"{queued} items wait, without measuring at most {self._queue_limit}")
        elif now_s - self._traffic_s >= self.rules.idle_s:
            self.phase = Phase.IDLE
        elif not self._is_known(now_s):
            self._pause_s = self.rules.first_pause_s  # it went well for long
            self._rest(now_s, self.rules.rest_s)

    def _is_known(self, now_s: float) -> bool:
        return self.p99_s is not None and now_s - self._ran_from_s < self.rules.rest_every_s

    def _pause(self, now_s: float, reason: str) -> None:
        self.pauses += 1
        self.reason = reason
        self._rest(now_s, self._pause_s)
        self._pause_s = min(2.0 * self._pause_s, self.rules.longest_pause_s)

    def _rest(self, now_s: float, least_s: float) -> None:
        self.phase = Phase.RESTING
        self._rest_began_s = now_s
        self._least_rest_s = least_s
        self._may_earn = False
        self._resting.clear()
        self._resting_queue = self._full = 0

    def _rest_over(self, now_s: float) -> None:
        """End the rest where it has lasted and seen enough, and is not in debt."""
        rules, rested_s = self.rules, now_s - self._rest_began_s
        is_idle = now_s - self._traffic_s >= rules.idle_s
        if is_idle:
            self.phase = Phase.IDLE
            return
        if self._credit < 0.0 or (rested_s < self._least_rest_s and not self._has_earned(rested_s)):
            return
        is_enough = len(self._resting) >= rules.rest_answers or rested_s >= rules.longest_rest_s
        if is_enough and self._resting:
            self.p99_s = steady_99(self._resting)
            self._queue_limit = max(2 * self._resting_queue, self._batch)
            self._ran_from_s = now_s
            self._run(now_s)

    def _has_earned(self, rested_s: float) -> bool:
        """Whether a rest for slow answers has settled the account, and put something by."""
        rules = self.rules
        is_long = self._may_earn and rested_s >= rules.first_pause_s
        return is_long and SLOW_SHARE * len(self._resting) >= rules.earned * rules.burst

    def _run(self, now_s: float) -> None:
        self.phase = Phase.RUNNING
        self._full = 0
        self._traffic_s = now_s

    # --- questions --------------------------------------------------------------------------------

    def mode(
        self, now_s: float, *, expected_s: float | None, spoiled: bool, waited_s: float, ran_s: float
    ) -> Mode:
        """Return how an execution may use the cores now, from its start or from here on.

        `expected_s` is how long it takes, if that is known; `spoiled` says that it was stopped on the way
        the last time, so that its time counts for little; so far it has waited and run for so long.
        """
        if self.phase is Phase.RESTING:
            return Mode.WAIT
        if self.phase is Phase.IDLE or self.p99_s is None:
            return Mode.YIELD
        rules = self.rules
        longest_s = rules.slice_share * (rules.max_slowdown - 1.0) * self.p99_s
        if spoiled and expected_s is not None and expected_s <= longest_s and now_s >= self._next_hold_s:
            return Mode.HOLD
        total_s = waited_s + ran_s
        if total_s >= rules.starved_s and ran_s < rules.starved_share * total_s:
            return Mode.HOLD
        return Mode.YIELD


def percentile_99(latencies_s: Sequence[float]) -> float:
    """Return the least latency that 99 in 100 do not exceed."""
    return sorted(latencies_s)[ceil(0.99 * len(latencies_s)) - 1]


def steady_99(latencies_s: Sequence[float]) -> float:
    """Return the percentile as it mostly is: of the quarters' the second least, where they have enough each.

    Of two thousand answers twenty are those of a single moment in which the machine did something else.
    """
    if len(latencies_s) < 4 * LEAST_IN_QUARTER:
        return percentile_99(latencies_s)
    size = len(latencies_s) // 4
    return sorted(percentile_99(latencies_s[at * size : (at + 1) * size]) for at in range(4))[1]
