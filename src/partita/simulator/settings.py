"""What is simulated."""

from dataclasses import dataclass, field
from math import inf, isfinite

from partita.core.errors import InvalidInput
from partita.machines.dispatcher import BatchingRules, Policy
from partita.planning.estimator import EstimatorRules
from partita.planning.switching import SwitchRules

DEFAULT_LOAD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """One model on one machine. Raises `InvalidInput` for values that cannot be."""

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
        )
