"""From an ensemble on disk to what the engine serves: launches, rule, and an allocation as a plan."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from partita.allocation_file import Allocation, kept_allocation
from partita.choosing import adopted
from partita.core.allocation import AllocationMatrix
from partita.core.devices import Device
from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.device_file import check_gpus, devices_for
from partita.engine.deployment import EnsembleDeployment, MemberDeployment, plan_of
from partita.engine.ensemble_signature import MemberRole
from partita.engine.instance import ModelLaunch
from partita.engine.service import ServiceSettings
from partita.ensemble_file import BOXES, RULES, BoxesSettings, EnsembleSource, MemberSource
from partita.footprints import known as known_footprint
from partita.launching import launch_of
from partita.planners import choices_of, first_plan
from partita.planning.bin_packing import worst_fit_decreasing
from partita.planning.ensemble_choices import EnsembleChoices
from partita.sources import ModelSource

Option = str | int | float | bool
DEFAULT_BATCH = 32
"""Batch size of an ensemble that nobody has allocated."""


Profiler = Callable[[ModelSource, tuple[int, ...]], Profile | None]
"""As that of `deploy`."""


def ensemble_deployment(
    source: ModelSource,
    settings: ServiceSettings,
    topology: Topology,
    cores: tuple[int, ...],
    profiler: Profiler | None = None,
) -> EnsembleDeployment:
    """Return how an ensemble is served on these cores: as given, as allocated before, else by its members'
    profiles where all have one, else safely.

    Members are executed by what was chosen for them, as single models are, where all are on cores. Only a
    plan from profiles follows the load.

    Raises `InvalidInput`, for an allocation that is given and does not fit as well.
    """
    if source.allocation is None or not source.allocation.has_gpus:  # what was chosen is best on cores
        source = adopted(source, topology)
    ensemble = source.ensemble
    assert ensemble is not None
    allocation = source.allocation
    if allocation is None:
        devices = devices_for(None, topology, cores)
        allocation = kept_allocation(ensemble, devices)
        if allocation is None:
            made = deployment_of(source, settings, safe_allocation(ensemble, devices, topology))
            return made if profiler is None else _planned(made, ensemble, topology, cores, profiler)
    else:
        _check_fits(allocation, ensemble, topology)
    return replace(deployment_of(source, settings, allocation), by_hand=True)


def _planned(
    made: EnsembleDeployment,
    ensemble: EnsembleSource,
    topology: Topology,
    cores: tuple[int, ...],
    profiler: Profiler,
) -> EnsembleDeployment:
    """Return it with the cores split among the members by their profiles; as it is where one has none."""
    members = tuple(
        replace(one, profile=_points(profiler(member.source, cores)))
        for one, member in zip(made.members, ensemble.members, strict=True)
    )
    planned = replace(made, members=members, cores=cores)
    if not planned.is_profiled:
        return made
    choices = choices_of(planned, topology, leaves_core=False)
    assert isinstance(choices, EnsembleChoices)
    return replace(planned, plan=first_plan(choices))


def _points(profile: Profile | None) -> Profile | None:
    return profile if profile is not None and profile.points else None


def deployment_of(
    source: ModelSource, settings: ServiceSettings, allocation: Allocation
) -> EnsembleDeployment:
    """Return how an ensemble is served with an allocation."""
    ensemble = source.ensemble
    assert ensemble is not None
    gpus = tuple(device for device in allocation.devices if device.is_gpu)
    return EnsembleDeployment(
        name=source.name,
        version=source.version,
        launch=ModelLaunch(name=source.name, path=str(ensemble.path), runtime="ensemble"),
        settings=settings,
        plan=plan_for_allocation(allocation),
        members=tuple(
            MemberDeployment(launch=replace(launch_of(member.source), gpus=gpus), role=role)
            for member, role in zip(ensemble.members, _roles(ensemble), strict=True)
        ),
        rule=ensemble.rule if ensemble.rule in RULES else "gathered",
        combiner=_combiner(ensemble, source),
        degrades=ensemble.on_member_failure == "degrade",
        weight=source.settings.weight,
    )


def _role(member: MemberSource) -> MemberRole:
    return MemberRole(name=member.name, weight=member.weight, output=member.output, classes=member.classes)


def _roles(ensemble: EnsembleSource) -> list[MemberRole]:
    """Return what each member is to the others. Classes of boxes are labels, and no places in the output."""
    roles = [_role(member) for member in ensemble.members]
    return [replace(role, classes=()) for role in roles] if ensemble.boxes is not None else roles


def _boxes_options(ensemble: EnsembleSource, boxes: BoxesSettings) -> dict[str, Option]:
    """Return the settings of the rule ``boxes`` as the options of its worker."""
    width, height = boxes.size or (1, 1)
    options: dict[str, Option] = {
        "iou": boxes.iou,
        "skip": boxes.skip,
        "confidence": boxes.confidence,
        "most": boxes.most,
        "width": width,
        "height": height,
        "weights": ",".join(repr(member.weight) for member in ensemble.members),
    }
    classes = ensemble.members[0].classes
    if classes:
        orders = ([classes.index(one) for one in member.classes] for member in ensemble.members)
        options["labels"] = ";".join(",".join(map(str, order)) for order in orders)
    return options


def _combiner(ensemble: EnsembleSource, source: ModelSource) -> ModelLaunch | None:
    if ensemble.rule in RULES:
        return None
    name = f"{source.name}-rule"
    if ensemble.boxes is not None:
        options = _boxes_options(ensemble, ensemble.boxes)
        return ModelLaunch(name=name, path=BOXES, runtime=BOXES, options=options)
    stacked = ensemble.rule.removeprefix("stack:")
    limit_s = source.settings.load_limit_s
    runtime = "onnxruntime" if stacked != ensemble.rule else "rule"
    return ModelLaunch(name=name, path=stacked, runtime=runtime, load_limit_s=limit_s)


def plan_for_allocation(allocation: Allocation) -> Plan:
    """Return the workers of a matrix as instances, on their devices' cores or sharing a GPU's slots."""
    return plan_of(
        [
            _instance(allocation.models[worker.model], allocation.devices[worker.device], worker.batch)
            for worker in allocation.matrix.workers()
        ]
    )


def _instance(model: str, device: Device, batch: int) -> InstanceSpec:
    """Return one worker. One on a GPU has a thread that hands work over, on no core in particular."""
    return InstanceSpec(
        model=model,
        device=device.name,
        threads=max(1, len(device.cores)),
        batch=batch,
        cores=device.cores,
        slots=device.slots if device.is_gpu else 0,
    )


def safe_allocation(
    ensemble: EnsembleSource, devices: Sequence[Device], topology: Topology | None = None
) -> Allocation:
    """Return every member on every device, so that no core is ever without work; fewer where memory is short.

    Raises `NoFeasiblePlan` if not even one worker for each member fits, by what was measured of it before or
    else by a guess from its file's size.
    """
    models = tuple(member.name for member in ensemble.members)
    batch = max((b for b in ensemble.batch_sizes if b <= DEFAULT_BATCH), default=ensemble.batch_sizes[0])
    known = [known_footprint(member.source, ensemble.batch_sizes, topology) for member in ensemble.members]
    sizes = [footprint.at(batch) for footprint in known]
    if all(device.memory_bytes is None or sum(sizes) <= device.memory_bytes for device in devices):
        matrix = AllocationMatrix(((batch,) * len(models),) * len(devices))
    else:
        matrix = worst_fit_decreasing(devices, models, [sizes] * len(devices), batch)
    return Allocation(devices=tuple(devices), models=models, matrix=matrix)


def _check_fits(allocation: Allocation, ensemble: EnsembleSource, topology: Topology) -> None:
    names = [member.name for member in ensemble.members]
    if list(allocation.models) != names:
        raise InvalidInput(
            f"the allocation is for {', '.join(allocation.models)}, "
            f"and {ensemble.path} has {', '.join(names)}"
        )
    known = {cpu.cpu for cpu in topology.cpus}
    check_gpus(allocation.devices)
    for device in allocation.devices:
        if not set(device.cores) <= known:
            raise NoFeasiblePlan(f"the allocation has {device.name}, and this process may not use all of it")
