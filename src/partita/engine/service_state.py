"""What a service can do now, and its limits."""

from dataclasses import dataclass
from enum import StrEnum

from partita.machines.dispatcher import BatchingRules


class ServiceState(StrEnum):
    """What a service can do now."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Limits of one service; the rest is in the rules of its members' dispatchers."""

    rules: BatchingRules
    deadline_s: float | None = None
    """Longest from arrival to answer unless a request says otherwise."""
    arena_bytes: int = 1 << 30
    """Size of X. Only what is used of it takes memory."""
