"""Plans from the published profiles: the paper's configurations and speed-ups, reproduced."""

import re
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from partita.core.profile import Profile
from partita.planning import recurrence
from partita.planning.optimizer import Optimizer
from partita.planning.table import LatencyTable
from partita.profiling.store import read_profile

TABLES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "packrat"
BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)

# (instances, threads, items of each), by cores and batch; what the paper and its recurrence arrive at.
CONFIGURATIONS = {
    16: ("⟨2,8,4⟩", "⟨4,4,4⟩", "⟨4,4,8⟩", "⟨4,4,16⟩", "⟨4,4,32⟩", "⟨8,2,32⟩", "⟨8,2,64⟩", "⟨8,2,128⟩"),
    14: (
        "⟨2,7,4⟩",
        "⟨1,6,8⟩ ⟨2,4,4⟩",
        "⟨1,6,16⟩ ⟨2,4,8⟩",
        "⟨1,6,32⟩ ⟨2,4,16⟩",
        "⟨2,7,64⟩",
        "⟨2,3,64⟩ ⟨4,2,32⟩",
        "⟨2,3,128⟩ ⟨4,2,64⟩",
        "⟨2,3,256⟩ ⟨4,2,128⟩",
    ),
}
CASES = [
    (cores, batch, configuration)
    for cores, all_of in CONFIGURATIONS.items()
    for batch, configuration in zip(BATCHES, all_of, strict=True)
]

pytestmark = pytest.mark.skipif(
    not TABLES.is_dir(), reason="needs the published profiles in ../shared/data/packrat"
)


@cache
def profile(model: str) -> Profile:
    return read_profile(TABLES / f"{model}_profile.csv", mode="script")


@cache
def optimizer(model: str, *, micro_batches: bool) -> Optimizer:
    return Optimizer(profile(model), micro_batches=micro_batches)


def latency_of(configuration: str) -> float:
    points = [tuple(map(int, group)) for group in re.findall(r"(\d+),(\d+),(\d+)", configuration)]
    times = [profile("bert").latency_ms(threads, items) for _, threads, items in points]
    return max(ms for ms in times if ms is not None)


@pytest.mark.parametrize(("cores", "batch", "configuration"), CASES)
def test_latency_is_that_of_the_papers_configuration(cores: int, batch: int, configuration: str) -> None:
    assert optimizer("bert", micro_batches=False).plan(cores, batch).expected_ms == latency_of(configuration)


@pytest.mark.parametrize(("cores", "batch", "configuration"), CASES)
def test_recurrence_arrives_at_the_same_latency(cores: int, batch: int, configuration: str) -> None:
    solution = recurrence.solve(LatencyTable.of(profile("bert")), cores, batch)
    assert solution is not None
    assert solution.latency_ms == latency_of(configuration)


@pytest.mark.parametrize(("cores", "batch", "configuration"), [case for case in CASES if case[0] == 16])
def test_plan_on_all_cores_is_the_papers(cores: int, batch: int, configuration: str) -> None:
    assert str(optimizer("bert", micro_batches=False).plan(cores, batch)) == configuration


@pytest.mark.parametrize(
    ("model", "alone", "with_micro_batches"),
    [("resnet", 2.27, 2.48), ("gpt2", 1.65, 1.65), ("bert", 1.59, 1.59)],
)
def test_mean_speed_up_over_the_fat_instance(model: str, alone: float, with_micro_batches: float) -> None:
    means = []
    for micro_batches in (False, True):
        plans = [optimizer(model, micro_batches=micro_batches).plan(16, batch) for batch in BATCHES]
        means.append(fmean(plan.speedup or 0.0 for plan in plans))
    assert round(means[0], 2) == alone
    assert round(means[1], 2) >= with_micro_batches
    assert model == "resnet" or round(means[1], 2) == with_micro_batches
