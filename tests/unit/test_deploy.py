"""What a plan says of how its workers are launched, and how many there are."""

from dataclasses import replace
from pathlib import Path

import pytest

from partita.core.errors import InvalidInput
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.core.topology import LogicalCpu, Topology
from partita.deploy import SPIN_BELOW_MS, deployments, plan_for, suited, within
from partita.engine.instance import ModelLaunch
from partita.planners import choices_of, planner_of
from partita.planning.head_core import worker_cores
from partita.settings import InstanceSettings, ModelSettings, ServerSettings
from partita.sources import ModelSource
from tests.models import linear


def plan(expected_ms: float | None, *executions: int) -> Plan:
    instance = InstanceSpec(threads=2, batch=sum(executions), executions=executions)
    return Plan(instances=(instance,), cores=2, batch=sum(executions), expected_ms=expected_ms)


@pytest.mark.parametrize(
    ("expected_ms", "executions", "spins"),
    [
        (SPIN_BELOW_MS, (1,), False),
        (SPIN_BELOW_MS - 0.1, (1,), True),
        (8 * SPIN_BELOW_MS, (4, 4), False),  # it is one item that counts, for one may come alone
        (8 * SPIN_BELOW_MS - 1, (4, 4), True),
        (None, (1,), True),  # nothing is known of the model
    ],
)
def test_threads_spin_unless_items_are_known_to_take_long(
    expected_ms: float | None, executions: tuple[int, ...], spins: bool
) -> None:
    launch = ModelLaunch(name="m", path="m.onnx", runtime="onnxruntime", options={"optimization": "basic"})
    options = suited(launch, plan(expected_ms, *executions)).options
    assert options == {"optimization": "basic"} | ({} if spins else {"spin": False})


@pytest.mark.parametrize(("runtime", "options"), [("onnxruntime", {"spin": True}), ("python", {})])
def test_what_the_user_says_stands_and_other_runtimes_are_left_alone(
    runtime: str, options: dict[str, str | int | float | bool]
) -> None:
    launch = ModelLaunch(name="m", path="m", runtime=runtime, options=options)
    assert suited(launch, plan(100.0, 1)) is launch


def profile(second_core: float) -> Profile:
    """A model that two cores execute so many times as fast as one does."""
    sizes = (1, 2, 4, 8, 16, 32)
    alone = [ProfilePoint(threads=1, batch=b, mean_ms=10.0 * b) for b in sizes]
    return Profile(
        [*alone, *(ProfilePoint(threads=2, batch=b, mean_ms=10.0 * b / second_core) for b in sizes)]
    )


@pytest.mark.parametrize(
    ("least", "most", "without", "thin", "fat"),
    [(None, None, 1, 2, 1), (None, 1, 1, 1, 1), (2, None, 2, 2, 2), (1, 2, 1, 2, 1), (3, 5, 2, 2, 2)],
)
def test_the_number_of_instances_is_within_the_limits(
    least: int | None, most: int | None, without: int, thin: int, fat: int
) -> None:
    settings = ModelSettings(min_workers=least, max_workers=most)
    source = ModelSource(name="m", path=Path("m.onnx"), runtime="onnxruntime", settings=settings)
    topology = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=n, cpu=n) for n in range(2)))
    for known, count in ((None, without), (profile(1.05), thin), (profile(1.99), fat)):
        found = plan_for(source, topology, (0, 1), known, leaves_core=True)
        assert len(found.instances) == count, (known, str(found))
        assert all(i.batch <= source.max_batch and i.cores for i in found.instances)


def test_an_archives_profile_counts_in_batches_that_its_handler_may_get() -> None:
    known = profile(1.9)
    settings = ModelSettings(max_batch=4)
    archive = ModelSource(name="m", path=Path("m.mar"), runtime="torchserve", settings=settings)
    found = within(known, archive)
    assert found is not None
    assert found.batches == (1, 2, 4)
    assert within(known, replace(archive, runtime="onnxruntime")) is known
    assert within(None, archive) is None


@pytest.mark.parametrize(
    ("item_ms", "cores", "used"),
    [(0.003, 1, 1), (0.003, 2, 1), (0.089, 2, 1), (0.1, 2, 2), (130.0, 2, 2), (0.1, 16, 15), (1.0, 16, 16)],
)
def test_the_head_is_left_a_core_where_it_works_as_hard_as_the_workers(
    item_ms: float, cores: int, used: int
) -> None:
    points = [ProfilePoint(threads=t, batch=b, mean_ms=item_ms * b / t) for t in (1, 2) for b in (1, 8)]
    assert worker_cores(Profile(points), cores) == used


@pytest.mark.parametrize(
    ("models", "head_cores", "used"), [(1, None, 7), (1, "0", 7), (2, None, 8), (4, None, 8), (4, "0", 7)]
)
def test_at_most_one_core_is_left_to_the_head_and_none_beside_its_own(
    tmp_path: Path, models: int, head_cores: str | None, used: int
) -> None:
    points = [ProfilePoint(threads=1, batch=b, mean_ms=0.003 * b) for b in (1, 8)]
    topology = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=n, cpu=n) for n in range(8)))
    sources = [
        ModelSource(name=name, path=linear(tmp_path / f"{name}.onnx"), runtime="onnxruntime")
        for name in "abcd"[:models]
    ]
    settings = ServerSettings(head_cores=head_cores)
    made = deployments(sources, settings, topology, lambda *_: Profile(points))
    assert sum(i.threads for one in made for i in one.plan.instances) == used
    for one in made:
        alone = models == 1 and head_cores is None
        choices = choices_of(one, topology, leaves_core=alone)
        planner = planner_of(one, topology, tuple(range(8)), leaves_core=alone)
        own = len(one.cores) - alone
        assert sum(i.threads for i in choices.best(own).instances) == own
        assert sum(i.threads for i in planner.plan(8, 8 - alone).instances) == 8 - alone


def test_no_core_is_left_where_nothing_is_known_yet_of_instances_that_fit_the_others(tmp_path: Path) -> None:
    """As after a tuning that was stopped when it had measured one point: the server is to start again."""
    begun = Profile([ProfilePoint(threads=2, batch=1, mean_ms=0.05)])
    assert worker_cores(begun, 2) == 2
    assert worker_cores(begun, 3) == 2
    source = ModelSource(name="m", path=linear(tmp_path / "m.onnx"), runtime="onnxruntime")
    topology = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=n, cpu=n) for n in range(2)))
    (made,) = deployments([source], ServerSettings(), topology, lambda *_: begun)
    assert [one.threads for one in made.plan.instances] == [2]


def test_of_a_model_without_a_profile_the_workers_get_all_cores() -> None:
    assert worker_cores(None, 4) == 4
    assert worker_cores(Profile([]), 4) == 4


# --- plans by hand --------------------------------------------------------------------------------

TWO_SOCKETS = Topology(cpus=tuple(LogicalCpu(socket=n // 4, node=n // 4, core=n, cpu=n) for n in range(8)))


def by_hand(*instances: InstanceSettings) -> list[tuple[int, ...]]:
    """Return the cores of each instance of a plan by hand on two sockets of four cores."""
    settings = ModelSettings(instances=instances)
    source = ModelSource(name="m", path=Path("m.onnx"), runtime="onnxruntime", settings=settings)
    found = plan_for(source, TWO_SOCKETS, tuple(range(8)), None, leaves_core=True)
    return sorted(instance.cores for instance in found.instances)


def test_cores_and_sockets_that_the_user_gives_are_respected() -> None:
    here, there = InstanceSettings(cores="2,6"), InstanceSettings(threads=3, socket=1)
    assert by_hand(here) == [(2, 6)]
    assert by_hand(there) == [(4, 5, 6)]
    assert by_hand(here, there) == by_hand(there, here) == [(2, 6), (4, 5, 7)]
    assert by_hand(there, InstanceSettings(threads=4)) == [(0, 1, 2, 3), (4, 5, 6)]


def test_a_socket_without_room_is_named() -> None:
    wanted = InstanceSettings(threads=3, socket=1)
    with pytest.raises(InvalidInput, match=r"\[model.m\] instances: socket 1 has 1 free cores.* wants 3"):
        by_hand(wanted, wanted)
    with pytest.raises(InvalidInput, match="socket 2 has 0 free cores"):
        by_hand(InstanceSettings(threads=1, socket=2))
