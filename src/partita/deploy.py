"""From a model on disk to what the engine serves: its launch, its limits, and the plan that it gets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from partita.archives.source import unpacked
from partita.choosing import adopted
from partita.core.errors import InvalidInput
from partita.core.plan import InstanceSpec, Lowered, Plan
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.engine.engine import Deployment
from partita.engine.instance import ModelLaunch
from partita.engine.service import ServiceSettings
from partita.ensemble_deploy import ensemble_deployment
from partita.launching import launch_of
from partita.machines.dispatcher import TURN_S, BatchingRules, Policy
from partita.planners import optimizer_for, planner_of
from partita.planning.division import Party, even_shares, wanted_cores
from partita.planning.head_core import worker_cores
from partita.planning.joint import Demand
from partita.planning.placement import place
from partita.settings import InstanceSettings, Requirements, ServerSettings
from partita.sources import ModelSource
from partita.system.cpulists import parse_cpu_list
from partita.system.cpus import select_cores
from partita.variants import Variant, variants_of

Profiler = Callable[[ModelSource, tuple[int, ...]], Profile | None]
"""Returns the profile of a model on these CPUs, measured now or before; None = plan without one."""


def limits_of(source: ModelSource, server: ServerSettings) -> ServiceSettings:
    """Return a model's limits and batching rules, milliseconds turned into seconds."""
    settings = source.settings
    return ServiceSettings(
        rules=BatchingRules(
            policy=Policy(settings.policy or server.policy),
            batch_timeout_s=settings.batch_timeout_s(server.policy),
            queue_timeout_s=_seconds(settings.queue_timeout_ms),
            execution_limit_s=settings.execution_limit_s,
            max_queue_items=settings.queue_size,
            turn_s=settings.weight * TURN_S,
        ),
        deadline_s=_seconds(settings.deadline_ms),
        arena_bytes=server.item_memory_bytes,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


SPIN_BELOW_MS = 10.0
"""Threads wait for each other by spinning in models whose items are expected to take less than this."""


def deployments(
    sources: Sequence[ModelSource],
    server: ServerSettings,
    topology: Topology,
    profiler: Profiler,
) -> list[Deployment]:
    """Plan every model on its share of the cores.

    Several models divide the cores so that the worst weighted latency of one item is least, as far as they
    have profiles, else evenly, in order; with fewer cores than models each gets one and shares it with others
    under the core leases. The other versions of a model share its cores.

    Raises `InvalidInput` or `NoFeasiblePlan`.
    """
    cores = cores_of(server, topology)
    if not cores:
        raise InvalidInput("head_cores leaves no core for the instances; give the head fewer, or raise cores")
    shares, is_alone = even_shares([s.name for s in sources], cores, topology), len(sources) == 1
    made = [
        deployment_for(source, server, topology, shares[source.name], profiler, is_alone=is_alone)
        for source in sources
    ]
    if server.adapt:
        made = _divided_by_profiles(made, sources, server, topology, cores, profiler)
    others = [
        deployment_for(other, server, topology, one.cores or one.plan.placed_on, profiler, is_alone=is_alone)
        for source, one in zip(sources, made, strict=True)
        for other in source.others
    ]
    return [*made, *others]


def _divided_by_profiles(
    made: Sequence[Deployment],
    sources: Sequence[ModelSource],
    server: ServerSettings,
    topology: Topology,
    cores: tuple[int, ...],
    profiler: Profiler,
) -> list[Deployment]:
    """Plan anew on other cores what is known well enough to divide them better than evenly."""
    parties = [_party(one, topology, cores) for one in made]
    if len(parties) < 2 or all(party.demand is None for party in parties):
        return list(made)
    wanted = wanted_cores(parties, cores, topology).cores
    return [
        one
        if party.is_fixed or wanted[party.name] == party.cores
        else deployment_for(source, server, topology, wanted[party.name], profiler, is_alone=False)
        for one, party, source in zip(made, parties, sources, strict=True)
    ]


def _party(deployment: Deployment, topology: Topology, cores: tuple[int, ...]) -> Party:
    """Return a model that nobody has asked anything yet."""
    if deployment.is_fixed or not deployment.cores:
        return Party(name=deployment.name, cores=deployment.plan.placed_on, is_fixed=True)
    demand = None
    if deployment.is_profiled:
        planner = planner_of(deployment, topology, cores, leaves_core=False)  # it has others beside it
        demand = Demand(name=deployment.name, optimizer=planner, batch=1, weight=deployment.weight)
    return Party(name=deployment.name, cores=deployment.cores, demand=demand)


def cores_of(server: ServerSettings, topology: Topology, *, strict: bool = True) -> tuple[int, ...]:
    """Return the cores that instances may have, those of the head left out.

    Raises `InvalidInput` where the user asked for more than there are; unless `strict`, it is what is there.
    """
    wanted = None if server.cores is None else str(server.cores)
    try:
        cores = select_cores(topology, wanted)
    except InvalidInput:
        if strict:
            raise
        cores = select_cores(topology, None)
        if wanted is not None and not wanted.strip().isdecimal():
            listed = set(parse_cpu_list(wanted.strip().removesuffix(",")))
            cores = tuple(core for core in cores if core in listed)
    head_cores = set(parse_cpu_list(server.head_cores)) if server.head_cores else set()
    return tuple(core for core in cores if core not in head_cores)


def deployment_for(
    source: ModelSource,
    server: ServerSettings,
    topology: Topology,
    cores: tuple[int, ...],
    profiler: Profiler,
    *,
    is_alone: bool,
) -> Deployment:
    """Plan one model, or allocate one ensemble, on these cores.

    A model that is alone may leave the head one of them, unless that has cores of its own.
    Raises `InvalidInput` or `NoFeasiblePlan`.
    """
    if source.ensemble is not None:
        known = None if server.tune is None else profiler  # embedded, nobody waits for members to be measured
        return ensemble_deployment(source, limits_of(source, server), topology, cores, known)
    as_given, source = source, as_launched(source, topology, server.requirements)
    profile = None if source.settings.instances else within(profiler(source, cores), source)
    leaves_core = is_alone and not server.head_cores
    plan = plan_for(source, topology, cores, profile, leaves_core=leaves_core)
    variants = variants_of(as_given, topology, profile)
    launches = {name: suited(one.launch, plan) for name, one in variants.items()}
    return Deployment(
        name=source.name,
        version=source.version,
        launch=replace(suited(launch_of(source), plan), variants=launches),
        settings=limits_of(source, server),
        plan=plan,
        cores=cores,
        profile=profile if profile is not None and profile.points else None,
        variants={name: one.profile for name, one in variants.items()},
        lowered=_lowered(source, variants),
        by_hand=bool(source.settings.instances),
        workers=(source.settings.min_workers, source.settings.max_workers),
        weight=source.settings.weight,
    )


def _lowered(source: ModelSource, variants: Mapping[str, Variant]) -> dict[str, Lowered]:
    """Return what lower precision costs, by the names of runtimes in plans; "" is the model's own."""
    found = {"": source.lowered, **{name: one.lowered for name, one in variants.items()}}
    return {name: one for name, one in found.items() if one is not None}


def as_launched(source: ModelSource, topology: Topology, requirements: Requirements) -> ModelSource:
    """Return a model as a worker loads it: in the runtime that was chosen for it, or unpacked."""
    return unpacked(source, requirements) if source.is_archive else adopted(source, topology)


def within(profile: Profile | None, source: ModelSource) -> Profile | None:
    """Return what is known of an archive in batches that its handler is to get; other models' as it is."""
    if profile is None or not source.is_archive:
        return profile
    points = [point for point in profile.points.values() if point.batch <= source.max_batch]
    return Profile(points, provenance=profile.provenance, load_s=profile.load_s, finished=profile.finished)


def suited(launch: ModelLaunch, plan: Plan) -> ModelLaunch:
    """Return a launch whose threads do not spin where items take long, unless the user says so.

    Spinning shortens many short operators. In long ones it saves nothing, and takes from the head and the
    system the core that a waiting thread could give them (docs/decisions/0002-worker-is-one-loop.md).
    """
    if plan.expected_ms is None or launch.runtime != "onnxruntime" or "spin" in launch.options:
        return launch
    item_ms = min(plan.expected_ms / len(one.executions) / one.micro_batch for one in plan.instances)
    return launch if item_ms < SPIN_BELOW_MS else replace(launch, options={**launch.options, "spin": False})


def plan_for(
    source: ModelSource,
    topology: Topology,
    cores: tuple[int, ...],
    profile: Profile | None,
    *,
    leaves_core: bool,
) -> Plan:
    """Return the placed plan of one model: by hand, else from a profile, else the safe one.

    One that `leaves_core` leaves the head one where that works as hard as the workers.
    """
    settings = source.settings
    if settings.instances:
        return place(_by_hand(settings.instances, source, topology, cores), topology, cores=cores)
    used = worker_cores(profile, len(cores), leaves_core=leaves_core)
    plan = _planned(source, topology, cores, profile, used)
    return place(
        plan if _is_allowed(plan, source) else _limited(source, topology, cores, profile, plan, used),
        topology,
        cores=cores,
    )


def _is_allowed(plan: Plan, source: ModelSource) -> bool:
    """Whether a plan has no fewer and no more instances than the settings want."""
    count, settings = len(plan.instances), source.settings
    return (settings.min_workers or 1) <= count <= (settings.max_workers or count)


def _limited(
    source: ModelSource,
    topology: Topology,
    cores: tuple[int, ...],
    profile: Profile | None,
    plan: Plan,
    used: int,
) -> Plan:
    """Return the best plan of as many instances as the settings want, and at most one for each core.

    Without a profile, or where it says nothing of such plans, the instances are as near in number to those of
    `plan` as they may be, and alike.
    """
    least, most = source.settings.min_workers or 1, source.settings.max_workers or len(cores)
    batch = source.settings.batch or source.max_batch
    if profile is not None and profile.points:
        optimizer = optimizer_for(profile, topology, cores, source.max_batch)
        for found in optimizer.candidates(used, max(batch, least), 2 * len(cores) + 1):
            if least <= len(found.instances) <= most:
                return found
    count = min(max(len(plan.instances), least), most, len(cores))
    return equal_plan(len(cores), count, source.max_batch)


def _planned(
    source: ModelSource, topology: Topology, cores: tuple[int, ...], profile: Profile | None, used: int
) -> Plan:
    settings = source.settings
    if profile is None or not profile.points:
        return safe_plan(len(cores), source.max_batch)
    optimizer = optimizer_for(profile, topology, cores, source.max_batch)
    if settings.batch is not None:
        return optimizer.plan(used, settings.batch)
    return optimizer.robust(used, source.max_batch)


def safe_plan(cores: int, max_batch: int) -> Plan:
    """Return ⟨1, T, b⟩, which any model can be served by without knowing anything of it."""
    instance = InstanceSpec(threads=cores, batch=max_batch)
    return Plan(instances=(instance,), cores=cores, batch=max_batch)


def equal_plan(cores: int, count: int, max_batch: int) -> Plan:
    """Return ⟨i, T ÷ i, b⟩ for a number of instances."""
    instance = InstanceSpec(threads=cores // count, batch=max_batch)
    return Plan(instances=(instance,) * count, cores=count * (cores // count), batch=count * max_batch)


def _by_hand(
    instances: Sequence[InstanceSettings], source: ModelSource, topology: Topology, cores: tuple[int, ...]
) -> Plan:
    specs = []
    socket_of = {cpu.cpu: cpu.socket for cpu in topology.cpus}
    named = {core for given in instances if given.cores is not None for core in parse_cpu_list(given.cores)}
    free = [core for core in cores if core not in named]
    for given in instances:
        cpus = parse_cpu_list(given.cores) if given.cores is not None else ()
        if given.socket is not None and given.threads is not None:
            cpus = tuple([c for c in free if socket_of.get(c) == given.socket][: given.threads])
            if len(cpus) < given.threads:
                raise InvalidInput(
                    f"[model.{source.name}] instances: socket {given.socket} has {len(cpus)} free cores, "
                    f"an instance wants {given.threads}"
                )
        free = [core for core in free if core not in cpus]
        threads = len(cpus) or given.threads or 1
        r = min(given.micro_batch or given.batch, given.batch)
        full, rest = divmod(given.batch, r)
        spec = InstanceSpec(
            threads=threads, batch=given.batch, executions=(r,) * full + ((rest,) if rest else ())
        )
        specs.append(replace(spec, cores=cpus) if cpus else spec)
    if not specs:
        raise InvalidInput(f"model {source.name!r}: a plan needs at least one instance")
    return Plan(
        instances=tuple(specs), cores=sum(s.threads for s in specs), batch=sum(s.batch for s in specs)
    )


__all__ = [
    "Profiler",
    "cores_of",
    "deployment_for",
    "deployments",
    "launch_of",
    "limits_of",
    "plan_for",
    "safe_plan",
]
