"""Profiles of real workers: measured, resumed, failed, verified."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from partita.core.errors import InvalidInput, LoadFailed, ProfileMismatch
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile
from partita.core.topology import LogicalCpu, Topology
from partita.engine.instance import ModelLaunch
from partita.profiling.crew import Crew, CrewSettings
from partita.profiling.runner import Listener, ProfileSettings, Progress, profile_model
from partita.profiling.solo import SoloWorker
from partita.profiling.verify import verify_plans
from partita.system.clock import SystemClock
from partita.system.cpus import allowed_cpus
from partita.wire.messages import BatchDone
from tests import models

pytestmark = [pytest.mark.process, pytest.mark.alone]

ARGV = (sys.executable, "-P", "-m", "partita.worker")
CORES = allowed_cpus()[:2]
TOPOLOGY = Topology(
    cpus=tuple(LogicalCpu(socket=0, node=0, core=c, cpu=c) for c in CORES), cpu_model="Test CPU"
)
SIZES = (1, 2, 4)

HANDLER = """
class Picky:
    inputs = {"x": {"shape": [-1, 4], "datatype": "FP32"}}
    outputs = {"y": {"shape": [-1, 4], "datatype": "FP32"}}

    def infer(self, batch):
        if len(batch["x"]) > 2:
            raise ValueError("too many")
        return {"y": batch["x"]}
"""


def launch(path: Path, runtime: str = "onnxruntime", **more: Mapping[str, int]) -> ModelLaunch:
    return ModelLaunch(name="m", path=str(path), runtime=runtime, **more)  # type: ignore[arg-type]


def settings(path: Path, of: ModelLaunch | None = None, **more: object) -> ProfileSettings:
    values: dict[str, object] = {"max_batch": 4, "budget_s": 60.0, "full": True, **more}
    return ProfileSettings(
        launch=of or launch(path),
        model_path=path,
        cores=CORES,
        topology=TOPOLOGY,
        worker_argv=ARGV,
        **values,  # type: ignore[arg-type]
    )


def full_keys() -> set[tuple[int, int]]:
    return {(t, b) for t in range(1, len(CORES) + 1) for b in SIZES}


def test_full_grid_records_all_there_is_to_know(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "model.onnx")
    seen: list[Progress] = []
    saved: list[Profile] = []
    profile = profile_model(
        settings(path), clock=SystemClock(), listener=Listener(progress=seen.append, save=saved.append)
    )
    assert set(profile.points) == full_keys()
    for point in profile.points.values():
        assert point.min_ms is not None
        assert point.max_ms is not None
        assert point.infer_ms is not None
        assert point.min_ms <= point.mean_ms <= point.max_ms
        assert 0 < point.infer_ms <= point.mean_ms
        assert point.iterations is not None
        assert 5 <= point.iterations <= 100
        assert point.stddev_ms is not None
        assert (point.resident_bytes or 0) > 10 << 20
        assert point.drift is not None
    assert profile.provenance is not None
    assert profile.provenance.cpu_model == "Test CPU"
    assert profile.provenance.runtime_version
    assert profile.load_s is not None
    assert profile.load_s > 0
    assert len(seen) == len(saved) - 1 == len(profile.points)
    assert [one.finished for one in saved] == [None] * len(seen) + [(len(CORES), 4)]
    assert profile == saved[-1]
    assert saved[0].points.keys() < profile.points.keys()


def test_lazy_profile_is_usable_and_ends(tmp_path: Path) -> None:
    profile = profile_model(
        settings(models.linear(tmp_path / "model.onnx"), full=False, budget_s=20.0), clock=SystemClock()
    )
    assert {(t, 1) for t in range(1, len(CORES) + 1)} <= set(profile.points) <= full_keys()


def test_interrupted_profile_goes_on_where_it_was(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "model.onnx")
    saved: list[Profile] = []

    def interrupt(progress: Progress) -> None:
        if progress.points == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_model(
            settings(path), clock=SystemClock(), listener=Listener(progress=interrupt, save=saved.append)
        )
    assert len(saved[-1].points) == 2
    seen: list[Progress] = []
    profile = profile_model(
        settings(path), clock=SystemClock(), resume=saved[-1], listener=Listener(progress=seen.append)
    )
    assert set(profile.points) == full_keys()
    assert len(seen) == len(full_keys()) - 2
    for key, point in saved[-1].points.items():
        assert profile.points[key].mean_ms == point.mean_ms


def test_profile_of_another_model_is_not_gone_on_with(tmp_path: Path) -> None:
    one = settings(models.linear(tmp_path / "a.onnx"), max_batch=1)
    other = settings(models.linear(tmp_path / "b.onnx", inputs=5), max_batch=1)
    profile = profile_model(one, clock=SystemClock())
    with pytest.raises(ProfileMismatch, match="model hash"):
        profile_model(other, clock=SystemClock(), resume=profile)


def test_sizes_that_fail_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "picky.py"
    path.write_text(HANDLER)
    notes: list[str] = []
    of = launch(Path(f"{path}:Picky"), runtime="python")
    profile = profile_model(
        settings(path, of, max_batch=8), clock=SystemClock(), listener=Listener(note=notes.append)
    )
    assert {batch for _, batch in profile.points} == {1, 2}
    assert any("too many" in note for note in notes)


def test_a_fixed_batch_axis_is_measured_at_its_size(tmp_path: Path) -> None:
    path = models.fixed_linear(tmp_path / "model.onnx", batch=3)
    profile = profile_model(settings(path), clock=SystemClock())
    assert {batch for _, batch in profile.points} == {3}


def test_a_model_without_batch_axis_is_measured_with_one_item(tmp_path: Path) -> None:
    profile = profile_model(settings(models.unbatched(tmp_path / "model.onnx")), clock=SystemClock())
    assert {batch for _, batch in profile.points} == {1}


def test_axes_of_any_size_are_said_aloud_and_recorded(tmp_path: Path) -> None:
    path = models.sequence_sum(tmp_path / "model.onnx")
    notes: list[str] = []
    default = profile_model(
        settings(path, max_batch=1), clock=SystemClock(), listener=Listener(note=notes.append)
    )
    assert default.provenance is not None
    assert list(default.provenance.dimensions.values()) == [64]
    assert any("64" in note for note in notes)
    (axis,) = default.provenance.dimensions
    given = profile_model(
        settings(path, launch(path, dimensions={axis: 16}), max_batch=1), clock=SystemClock()
    )
    assert given.provenance is not None
    assert given.provenance.dimensions == {axis: 16}


def test_several_inputs_and_integers(tmp_path: Path) -> None:
    """Made-up integers may be no valid rows of this model's table: then samples are needed."""
    path = models.two_inputs(tmp_path / "model.onnx", rows=100)
    np.savez(tmp_path / "s.npz", x=np.ones((3, 4), np.float32), index=np.array([0, 5, 99]))
    for samples in (None, tmp_path / "s.npz"):
        profile = profile_model(settings(path, samples=samples, max_batch=2), clock=SystemClock())
        assert {batch for _, batch in profile.points} == {1, 2}


def test_model_that_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nonsense")
    with pytest.raises(LoadFailed):
        profile_model(settings(path), clock=SystemClock())


def test_budget_too_small_for_anything(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "model.onnx")
    with pytest.raises(InvalidInput, match="give more"):
        profile_model(settings(path, budget_s=0.001), clock=SystemClock())


def plan(*instances: tuple[tuple[int, ...], int, tuple[int, ...]]) -> Plan:
    specs = tuple(
        InstanceSpec(threads=len(cores), batch=batch, executions=executions, cores=cores)
        for cores, batch, executions in instances
    )
    return Plan(instances=specs, cores=len(CORES), batch=sum(s.batch for s in specs), expected_ms=1.0)


def test_plans_are_measured_and_the_fastest_comes_first(tmp_path: Path) -> None:
    path = models.slow(tmp_path / "model.onnx", layers=60)
    one = CORES[:1]
    quick = plan((one, 8, (8,)))
    tedious = plan((one, 8, (1,) * 8))
    crew = CrewSettings(launch=launch(path), worker_argv=ARGV)
    found = verify_plans(crew, [tedious, quick], seconds=0.5, clock=SystemClock())
    assert [p.instances for p in found] == [quick.instances, tedious.instances]
    assert all(p.measured_ms and p.expected_ms == 1.0 for p in found)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_all_instances_of_a_plan_run_at_once(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "model.onnx")
    two = plan((CORES[:1], 3, (2, 1)), (CORES[1:], 2, (2,)))
    (found,) = verify_plans(
        CrewSettings(launch=launch(path), worker_argv=ARGV), [two], seconds=0.1, clock=SystemClock()
    )
    assert found.measured_ms is not None
    assert found.measured_ms > 0


def test_waiting_for_answers_is_no_part_of_what_a_plan_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_s = 0.2
    heard = SoloWorker.done

    def late(worker: SoloWorker) -> BatchDone:
        time.sleep(late_s)
        return heard(worker)

    one = plan((CORES[:1], 2, (1, 1)))
    with Crew(
        CrewSettings(launch=launch(models.linear(tmp_path / "m.onnx")), worker_argv=ARGV), largest=2
    ) as crew:
        crew.load(one)
        monkeypatch.setattr(SoloWorker, "done", late)
        with crew.awake(one):
            assert 0 < min(crew.batch_ms(one) for _ in range(3)) < 1e3 * late_s / 2


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_workers_of_other_plans_are_stopped_while_one_executes(tmp_path: Path) -> None:
    thin, fat = plan((CORES[:1], 1, (1,)), (CORES[1:], 1, (1,))), plan((CORES, 2, (2,)))
    settings = CrewSettings(launch=launch(models.linear(tmp_path / "m.onnx")), worker_argv=ARGV)
    with Crew(settings, largest=2) as crew:
        for one in (thin, fat):
            crew.load(one)
        for one, running in ((thin, 2), (fat, 1), (thin, 2)):
            with crew.awake(one):
                assert crew.batch_ms(one) > 0
                until_stopped(3 - running)
        until_stopped(3)
        with pytest.raises(AssertionError, match="sleep"):
            crew.batch_ms(fat)


def until_stopped(count: int) -> None:
    deadline_s = time.monotonic() + 20.0
    while (stopped := stopped_workers()) != count:
        assert time.monotonic() < deadline_s, f"{stopped} workers are stopped, not {count}"
        time.sleep(0.001)


def stopped_workers() -> int:
    """Return how many children are stopped, by a signal and not by a debugger."""
    tasks = Path("/proc/self/task").iterdir()
    pids = [pid for task in tasks for pid in (task / "children").read_text(encoding="ascii").split()]
    stats = [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8") for pid in pids]
    return sum(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_unplaced_plans_are_refused(tmp_path: Path) -> None:
    bare = Plan(instances=(InstanceSpec(threads=1, batch=1),), cores=1, batch=1)
    with pytest.raises(InvalidInput, match="place it first"):
        verify_plans(
            CrewSettings(launch=launch(tmp_path / "x"), worker_argv=ARGV),
            [bare],
            seconds=0.1,
            clock=SystemClock(),
        )
