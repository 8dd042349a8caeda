"""The life of one instance's worker process: a table of transitions, restarts with back-off, giving up.

Events in, instructions out; the engine does what they say. An event that the table does not allow in the
current state raises `IllegalTransition` and changes nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from partita.core.errors import PartitaError


class State(StrEnum):
    """Where a worker is in its life."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    WAITING = "waiting"
    """Gone; to be started again after the back-off."""
    FAILED = "failed"
    """Gone for good: it failed too often in a row."""
    STOPPED = "stopped"


class Event(StrEnum):
    """What can happen to a worker."""

    STARTED = "started"
    BECAME_READY = "became_ready"
    DIED = "died"
    """The process is gone and reaped, whatever the reason."""
    BACKOFF_PASSED = "backoff_passed"
    DRAIN_ASKED = "drain_asked"


class IllegalTransition(PartitaError):
    """An event came that cannot happen in this state."""

    code = "illegal_transition"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.NEW, Event.STARTED): State.STARTING,
    (State.NEW, Event.DRAIN_ASKED): State.STOPPED,
    (State.STARTING, Event.BECAME_READY): State.READY,
    (State.STARTING, Event.DIED): State.WAITING,
    (State.STARTING, Event.DRAIN_ASKED): State.DRAINING,
    (State.READY, Event.DIED): State.WAITING,
    (State.READY, Event.DRAIN_ASKED): State.DRAINING,
    (State.WAITING, Event.BACKOFF_PASSED): State.STARTING,
    (State.WAITING, Event.DRAIN_ASKED): State.STOPPED,
    (State.FAILED, Event.DRAIN_ASKED): State.STOPPED,
    (State.DRAINING, Event.BECAME_READY): State.DRAINING,
    (State.DRAINING, Event.DRAIN_ASKED): State.DRAINING,
    (State.DRAINING, Event.DIED): State.STOPPED,
    (State.STOPPED, Event.DRAIN_ASKED): State.STOPPED,
}
"""All that is allowed. One exception is policy, not table: WAITING becomes FAILED after too many tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """How often and how fast a worker is started again."""

    first_backoff_s: float = 0.05
    backoff_factor: float = 2.0
    longest_backoff_s: float = 10.0
    """Between starts that fail; after a worker that had become ready it is a twentieth of this."""
    stable_s: float = 5.0
    """A worker that was ready this long had no part in the next one's failure: the count starts anew."""
    max_failed_starts: int = 5
    """Starts in a row that never became ready before giving up."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the process."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Tell `backoff_passed` at this time."""

    at_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell the owner that this instance has failed for good."""

    reason: str


Instruction = Start | WakeAt | GiveUp | None


class WorkerLife:
    """State and restart count of one instance's worker."""

    def __init__(self, rules: RestartRules) -> None:
        self.rules = rules
        self.state = State.NEW
        self.restarts = 0
        """Times that the process was started again."""
        self.last_reason = ""
        self._failed_starts = 0
        self._quick_deaths = 0
        self._ready_since_s: float | None = None

    @property
    def fails_to_start(self) -> bool:
        """Whether its last start, or more of them, never became ready."""
        return self._failed_starts > 0

    def _move(self, event: Event) -> None:
        new = TRANSITIONS.get((self.state, event))
        if new is None:
            raise IllegalTransition(f"{event.value} cannot happen while {self.state.value}")
        self.state = new

    def started(self) -> None:
        """The process has been started."""
        self._move(Event.STARTED)

    def became_ready(self, now_s: float) -> None:
        """It has loaded its model and warmed up."""
        self._move(Event.BECAME_READY)
        self._ready_since_s = now_s
        self._failed_starts = 0

    def died(self, now_s: float, reason: str) -> Instruction:
        """It is gone. Returns what to do about it; None when it was meant to go."""
        was = self.state
        self._move(Event.DIED)
        self.last_reason = reason
        ready_since_s, self._ready_since_s = self._ready_since_s, None
        if self.state is State.STOPPED:
            return None
        if was is State.STARTING:
            self._failed_starts += 1
            if self._failed_starts >= self.rules.max_failed_starts:
                self.state = State.FAILED
                return GiveUp(reason)
        elif ready_since_s is not None and now_s - ready_since_s >= self.rules.stable_s:
            self._quick_deaths = 0
        else:
            self._quick_deaths += 1
        return WakeAt(now_s + self._backoff_s())

    def _backoff_s(self) -> float:
        rules = self.rules
        tries = max(self._failed_starts + self._quick_deaths - 1, 0)
        longest_s = rules.longest_backoff_s if self._failed_starts else rules.longest_backoff_s / 20
        return min(rules.first_backoff_s * rules.backoff_factor ** min(tries, 30), longest_s)

    def backoff_passed(self) -> Instruction:
        """The time that `WakeAt` named has come; nothing to do if it was stopped meanwhile."""
        if self.state is not State.WAITING:
            return None
        self._move(Event.BACKOFF_PASSED)
        self.restarts += 1
        return Start()

    def drain(self) -> None:
        """It is to finish what it has in hand and go."""
        self._move(Event.DRAIN_ASKED)
