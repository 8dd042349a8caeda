"""What choosing a runtime is told: among what and within which limits, by when, and who hears of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from partita.core.choice import Allowance, Candidate, Choice
from partita.core.clock import Clock
from partita.core.errors import InvalidInput
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.engine.instance import ModelLaunch
from partita.planning.halving import HalvingRules

_LONGEST_MAKING_S = 90.0
"""What a model is turned into once, such as an export to ONNX, gets so much time beyond the budget in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSettings:
    """What to choose among, and within which limits. The first candidate is the reference."""

    launch: ModelLaunch
    model_path: Path
    candidates: tuple[Candidate, ...]
    cores: tuple[int, ...]
    """Cores of the fullest socket: no instance has more."""
    sockets: tuple[int, ...]
    """How many cores plans have on each socket."""
    topology: Topology
    worker_argv: tuple[str, ...]
    max_batch: int = 32
    budget_s: float = 30.0
    samples: Path | None = None
    relative_tolerance: float | None = None
    allowed: Allowance | None = None
    """What lower precision may change; None = it does not compete."""
    execution_limit_s: float = 120.0
    arena_bytes: int = 1 << 34
    rules: HalvingRules = field(default_factory=HalvingRules)

    def __post_init__(self) -> None:
        if not self.candidates or not self.cores or not self.budget_s > 0:
            raise InvalidInput("choosing a runtime needs a candidate, a core and time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is being done, and how much of the time has passed."""

    elapsed_s: float
    left_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Who hears of it: `save` of a candidate's profile after every point, `decided` of the best so far."""

    step: Callable[[Step], None] = field(default=lambda _: None)
    note: Callable[[str], None] = field(default=lambda _: None)
    save: Callable[[Candidate, Profile], None] = field(default=lambda _, __: None)
    decided: Callable[[Choice], None] = field(default=lambda _: None)


class Schedule:
    """How much of the time has passed. What is made once and kept takes time of its own."""

    def __init__(self, clock: Clock, budget_s: float) -> None:
        self._clock = clock
        self._begun_s = clock.now_s()
        self._budget_s = budget_s
        self._granted_s = 0.0

    def now_s(self) -> float:
        """The clock's time."""
        return self._clock.now_s()

    @property
    def elapsed_s(self) -> float:
        """Seconds of the budget that are spent."""
        return self._clock.now_s() - self._begun_s - self._granted_s

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, below nought once it is overdrawn."""
        return self._budget_s - self.elapsed_s

    @property
    def until_s(self) -> float:
        """When the budget will be spent, by the clock."""
        return self._begun_s + self._budget_s + self._granted_s

    @property
    def grantable_s(self) -> float:
        """Seconds beyond the budget that there are still for making things."""
        return _LONGEST_MAKING_S - self._granted_s

    def grant(self, seconds: float) -> None:
        """Do not count these seconds, which went into making something that is kept."""
        self._granted_s += min(max(seconds, 0.0), self.grantable_s)
