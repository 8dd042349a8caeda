"""What is simulated."""

from dataclasses import dataclass, field, replace
from math import inf, isfinite

from partita.core.errors import InvalidInput
from partita.core.profile import Profile
from partita.machines.dispatcher import TURN_S, BatchingRules, Policy
from partita.planning.estimator import EstimatorRules
from partita.planning.switching import SwitchRules
from partita.simulator.arrivals import Arrivals

DEFAULT_LOAD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """One model, and the machine that it is on. Raises `InvalidInput` for values that cannot be."""

    cores: int
    """T."""
    max_batch: int
    """Largest aggregate batch to plan for."""
    batch: int | None = None
    """B of the first plan; None = the plan for a load that is not known."""
    sockets: tuple[int, ...] | None = None
    """Cores of each socket; None = one socket."""
    policy: Policy = Policy.EAGER
    batch_timeout_s: float = 0.0
    max_queue_items: int = 1_000_000
    adapt: bool = True
    load_s: float = DEFAULT_LOAD_S
    """Time to load the model in a new worker."""
    weight: float = 1.0
    """How much its latency counts beside those of other models."""
    contention: float = 0.0
    """How much longer an execution takes while all other cores execute: 0.6 = 1.6 times as long."""
    estimator: EstimatorRules = field(default_factory=EstimatorRules)
    switching: SwitchRules = field(default_factory=SwitchRules)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("cores", self.cores, 1),
            ("largest batch", self.max_batch, 1),
            ("batch", self.batch or 1, 1),
            ("queue", self.max_queue_items, 1),
            ("batch timeout", self.batch_timeout_s, 0),
            ("load time", self.load_s, 0),
            ("contention", self.contention, 0),
        ):
            if not (isfinite(value) and value >= least):
                raise InvalidInput(f"simulation: {name} {value}: must be {least} or more")
        if not (isfinite(self.weight) and self.weight > 0.0):
            raise InvalidInput(f"simulation: weight {self.weight}: must be more than 0")
        if self.sockets is not None and sum(self.sockets) < self.cores:
            raise InvalidInput(f"simulation: sockets {self.sockets} have fewer than {self.cores} cores")

    @property
    def rules(self) -> BatchingRules:
        """How batches are formed."""
        return BatchingRules(
            policy=self.policy,
            batch_timeout_s=self.batch_timeout_s,
            execution_limit_s=inf,
            max_queue_items=self.max_queue_items,
            turn_s=self.weight * TURN_S,
        )

    @property
    def machine(self) -> tuple[object, ...]:
        """What it says of the machine, which has to be the same for all models on it."""
        return (
            self.cores,
            self.sockets,
            self.adapt,
            self.contention,
            self.switching,
            replace(self.estimator, max_batch=1),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedLoad:
    """A model among others: what is known of it, what comes, and how it is served."""

    name: str
    profile: Profile
    arrivals: Arrivals
    settings: SimulationSettings
