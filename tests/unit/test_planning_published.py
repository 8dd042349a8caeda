"""Plans on the profiles that the Packrat paper was made with: what it reports is found again."""

from pathlib import Path
from statistics import mean

import pytest

from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.planning import recurrence
from partita.planning.optimizer import Optimizer
from partita.profiling.store import read_profile

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "packrat"
BATCHES = [8, 16, 32, 64, 128, 256, 512, 1024]

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the published profiles are not beside the repository"
)

PAPER = {  # batch: configurations ⟨i, t, b⟩ at T = 16, and at T = 14
    8: ([(2, 8, 4)], [(2, 7, 4)]),
    16: ([(4, 4, 4)], [(1, 6, 8), (2, 4, 4)]),
    32: ([(4, 4, 8)], [(1, 6, 16), (2, 4, 8)]),
    64: ([(4, 4, 16)], [(1, 6, 32), (2, 4, 16)]),
    128: ([(4, 4, 32)], [(2, 7, 64)]),
    256: ([(8, 2, 32)], [(2, 3, 64), (4, 2, 32)]),
    512: ([(8, 2, 64)], [(2, 3, 128), (4, 2, 64)]),
    1024: ([(8, 2, 128)], [(2, 3, 256), (4, 2, 128)]),
}


def profile(name: str) -> Profile:
    return read_profile(DATA / f"{name}_profile.csv", mode="script")


def latency(table: Profile, configuration: list[tuple[int, int, int]]) -> float:
    return max(table.latency_ms(t, b) or float("inf") for _, t, b in configuration)


def configuration(plan: Plan) -> list[tuple[int, int, int]]:
    return [(count, spec.threads, spec.batch) for spec, count in plan.groups()]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("cores", [16, 14])
def test_bert_latencies_are_the_papers(cores: int, batch: int) -> None:
    table = profile("bert")
    plan = Optimizer(table, micro_batches=False).plan(cores, batch)
    expected = PAPER[batch][0 if cores == 16 else 1]
    assert plan.expected_ms == latency(table, expected)
    if cores == 16:
        assert configuration(plan) == expected


def test_the_recurrence_agrees_with_the_search() -> None:
    table = profile("bert")
    optimizer = Optimizer(table, micro_batches=False)
    for cores in (14, 16):
        for batch in (8, 64, 256):
            found = recurrence.solve(optimizer.table, cores, batch)
            assert found is not None
            assert found.latency_ms == optimizer.plan(cores, batch).expected_ms


@pytest.mark.parametrize(
    ("name", "alone", "with_micro_batches"),
    [("resnet", 2.27, 2.48), ("gpt2", 1.65, 1.65), ("bert", 1.59, 1.59)],
)
def test_mean_speed_up_over_the_fat_instance(name: str, alone: float, with_micro_batches: float) -> None:
    table = profile(name)
    for micro_batches, expected in ((False, alone), (True, with_micro_batches)):
        optimizer = Optimizer(table, micro_batches=micro_batches)
        ratio = mean(optimizer.plan(16, batch).speedup or 0.0 for batch in BATCHES)
        assert round(ratio, 2) == expected
