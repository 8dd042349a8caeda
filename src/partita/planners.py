"""What plans a model or an ensemble while it serves, made from what is known of it."""

from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.engine.deployment import Deployment, EnsembleDeployment
from partita.machines.dispatcher import Policy
from partita.planning.choices import ProfiledChoices
from partita.planning.ensemble_choices import EnsembleChoices, EnsemblePlanner
from partita.planning.head_core import LeavingPlanner, worker_cores
from partita.planning.joint import Planner
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place, place_beside, standing_on
from partita.planning.varied_choices import VariedChoices

MOST_BATCH = 256
"""Largest aggregate batch that plans are made for, for each core."""
FIRST_BATCH = 32
"""Items that an ensemble's instances take where its load is not known."""


def optimizer_for(
    profile: Profile, topology: Topology, cores: tuple[int, ...], max_instance_batch: int
) -> Optimizer:
    """Return what chooses among the plans of a model on these cores."""
    sockets = tuple(map(len, topology.by_socket(cores)))
    return Optimizer(profile, sockets=sockets, max_instance_batch=max_instance_batch)


def profiles_of(deployment: Deployment) -> dict[str, Profile]:
    """Return the profiles that plans are made from, by member; one without a name for a single model."""
    if isinstance(deployment, EnsembleDeployment):
        return {m.role.name: m.profile for m in deployment.members if m.profile is not None}
    return {} if deployment.profile is None else {"": deployment.profile}


def largest_batch(deployment: Deployment) -> int:
    """Return the most items that one instance of a model is given at once."""
    profiled = [batch for one in profiles_of(deployment).values() for _, batch in one.points]
    return min(MOST_BATCH, max([*(i.batch for i in deployment.plan.instances), *profiled]))


def planner_of(
    deployment: Deployment, topology: Topology, cores: tuple[int, ...], *, leaves_core: bool
) -> Planner:
    """Return what plans a profiled model, or ensemble, on any number of these cores.

    A single model that `leaves_core` leaves the head one where that works as hard as the workers.
    """
    most = largest_batch(deployment)
    made = {name: optimizer_for(one, topology, cores, most) for name, one in profiles_of(deployment).items()}
    if isinstance(deployment, EnsembleDeployment):
        return EnsemblePlanner(made)
    assert deployment.profile is not None
    return LeavingPlanner(deployment.profile, made[""]) if leaves_core else made[""]


def choices_of(
    deployment: Deployment, topology: Topology, *, leaves_core: bool
) -> ProfiledChoices | VariedChoices | EnsembleChoices:
    """Return what there is to choose from at run time for a profiled model, or ensemble, on its cores."""
    cores, most = deployment.cores, largest_batch(deployment)
    together = deployment.settings.rules.policy is Policy.AGGREGATE
    made = {name: optimizer_for(one, topology, cores, most) for name, one in profiles_of(deployment).items()}
    if isinstance(deployment, EnsembleDeployment):
        return EnsembleChoices(
            made,
            cores=len(cores),
            max_batch=most * len(cores),
            place=lambda plan: place(plan, topology, cores=cores),
            allowed=cores,
            together=together,
        )
    standing = standing_on(deployment.plan.instances, cores)
    used = worker_cores(deployment.profile, len(cores), leaves_core=leaves_core)

    def choices(optimizer: Optimizer) -> ProfiledChoices:
        return ProfiledChoices(
            optimizer,
            cores=used,
            max_batch=most * used,
            place=lambda plan: place_beside(plan, standing, topology, cores=cores),
            allowed=cores,
            together=together,
        )

    own = choices(made[""])
    others = {
        name: choices(optimizer_for(one, topology, cores, most)) for name, one in deployment.variants.items()
    }
    return VariedChoices(own, others) if others else own


def first_plan(choices: EnsembleChoices, batch: int | None = None) -> Plan:
    """Return the plan of an ensemble for a load; for one that is not known the soonest for one item."""
    if batch is not None:
        return choices.best(max(1, min(batch, choices.max_batch)))
    plan = choices.best(1)
    return choices.rebatched(plan, min(FIRST_BATCH, choices.max_batch)) or plan
