"""What an engine is asked to serve: one model, or an ensemble of several."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partita.core.plan import InstanceSpec, Lowered, Plan
from partita.core.profile import Profile
from partita.engine.ensemble_signature import MemberRole
from partita.engine.instance import ModelLaunch
from partita.engine.service import ServiceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One model to serve, with the plan that it is served by."""

    name: str
    version: str
    launch: ModelLaunch
    settings: ServiceSettings
    plan: Plan
    cores: tuple[int, ...] = ()
    """What other plans may use; empty = only what this one does."""
    profile: Profile | None = None
    """What the plan was made from, and others can be; None = without a profile, or by hand."""
    variants: Mapping[str, Profile] = field(default_factory=dict)
    """What is known of it in other runtimes, by the names that `launch.variants` has for them."""
    lowered: Mapping[str, Lowered] = field(default_factory=dict)
    """What lower precision costs, of its own runtime ("") and of `variants`, where one has such."""
    by_hand: bool = False
    """Whether somebody has said which instances there are, so that nobody looks for better ones."""
    workers: tuple[int | None, int | None] = (None, None)
    """Fewest and most instances that somebody has said there may be."""
    weight: float = 1.0
    """How much the model's latency counts where several divide the cores."""

    @property
    def is_limited(self) -> bool:
        """Whether there are limits for the number of instances, so that the plan does not follow the load."""
        return self.workers != (None, None)

    @property
    def is_profiled(self) -> bool:
        """Whether plans can be made from what is known of it."""
        return self.profile is not None

    @property
    def is_fixed(self) -> bool:
        """Whether its cores are its own by somebody's word, however the others are divided."""
        return self.by_hand or self.is_limited


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDeployment:
    """One member of an ensemble: how it is launched, and what it is to the others."""

    launch: ModelLaunch
    role: MemberRole
    profile: Profile | None = None
    """What its part of a plan can be made from; None = without a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleDeployment(Deployment):
    """An ensemble. Every instance of its plan names the member that it is of."""

    members: tuple[MemberDeployment, ...]
    rule: str
    """One that the head knows (`machines/rules.py`), or ``gathered`` where `combiner` runs it."""
    combiner: ModelLaunch | None = None
    """The worker that a user's rule (runtime ``rule``) or a stacking model runs in."""
    degrades: bool = False
    """Whether a request is answered without the members that fail on it."""

    @property
    def is_profiled(self) -> bool:
        """Whether plans can be made from what is known of all members."""
        return all(member.profile is not None for member in self.members)


def plan_of(specs: Sequence[InstanceSpec]) -> Plan:
    """Return these instances as a plan. Where they share cores, its `cores` counts them as often.

    Of several models it takes as many items as the one that takes fewest.
    """
    items: Counter[str] = Counter()
    for spec in specs:
        items[spec.model] += spec.batch
    return Plan(
        instances=tuple(specs),
        cores=sum(s.threads for s in specs),
        batch=min(items.values(), default=0),
    )
