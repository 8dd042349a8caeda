"""Which points lazy profiling asks for, and when it stops."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import lazy_replay

from partita.core.errors import InvalidInput
from partita.planning.sampling import LazySampler, SamplerSettings
from partita.planning.sampling_grid import GridSampler
from partita.planning.sampling_iterations import IterationRule, PointRun, Sample
from partita.profiling.csv_table import read_csv

TABLES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "packrat"


def exact(mean_ms: float) -> Sample:
    return Sample(iterations=100, mean_ms=mean_ms)


def drive(sampler: LazySampler, latency_ms: dict[tuple[int, int], float], *, budget_s: float = 1e9) -> None:
    """Answer every question with the exact latency, as if it had been run ten times."""
    for _ in range(10_000):
        measure = sampler.next(budget_s)
        if measure is None:
            return
        mean_ms = latency_ms[measure.threads, measure.batch]
        budget_s -= 10 * mean_ms / 1e3
        sampler.record(measure.threads, measure.batch, exact(mean_ms))
    raise AssertionError("still asking after 10,000 points")


def linear(cores: int, sizes: tuple[int, ...], per_item_ms: float = 10.0) -> dict[tuple[int, int], float]:
    return {(t, b): per_item_ms * b / t for t in range(1, cores + 1) for b in sizes}


def test_begins_with_one_item_for_every_thread_count() -> None:
    sampler = LazySampler(SamplerSettings(cores=4, max_batch=8), budget_s=100.0)
    asked = []
    for _ in range(4):
        measure = sampler.next(100.0)
        assert measure is not None
        asked.append((measure.threads, measure.batch))
        sampler.record(measure.threads, measure.batch, exact(10.0))
    assert asked[0] == (4, 1)
    assert asked[1] == (1, 1)
    assert sorted(asked) == [(t, 1) for t in range(1, 5)]


def test_asks_nothing_once_the_time_is_up() -> None:
    sampler = LazySampler(SamplerSettings(cores=2, max_batch=8), budget_s=10.0)
    assert sampler.next(0.0) is None


def test_goes_on_where_an_earlier_table_ends() -> None:
    settings = SamplerSettings(cores=3, max_batch=16)
    table = linear(3, settings.sizes)
    first = LazySampler(settings, budget_s=1e9)
    drive(first, table)
    again = LazySampler(settings, budget_s=1e9, measured=[(*k, s) for k, s in first.samples.items()])
    assert again.next(1e9) is None
    assert again.samples == first.samples


def test_points_of_other_sizes_are_no_help_and_no_harm() -> None:
    settings = SamplerSettings(cores=2, max_batch=4)
    sampler = LazySampler(settings, budget_s=10.0, measured=[(1, 3, exact(1.0)), (9, 1, exact(1.0))])
    assert not sampler.samples


def test_a_point_that_failed_is_left_out_with_all_larger_ones() -> None:
    sampler = LazySampler(SamplerSettings(cores=1, max_batch=16), budget_s=1e9)
    sampler.fail(1, 4)
    drive(sampler, linear(1, (1, 2)))
    assert {batch for _, batch in sampler.samples} == {1, 2}


def test_large_batches_that_cannot_help_are_not_measured() -> None:
    """Latency grows faster than the batch: splitting always wins, so few large ones are looked at."""
    settings = SamplerSettings(cores=4, max_batch=1024)
    table = {(t, b): 1000.0 * b**1.3 / t for t in range(1, 5) for b in settings.sizes}
    sampler = LazySampler(settings, budget_s=3000.0)
    drive(sampler, table, budget_s=3000.0)
    assert sum(batch > 64 for _, batch in sampler.samples) <= 4
    assert len(sampler.samples) <= 4 * 7


def test_larger_batches_than_one_that_gains_nothing_are_left_out() -> None:
    settings = SamplerSettings(cores=2, max_batch=32, least_gain=0.03)
    sampler = LazySampler(settings, budget_s=1e9)
    table = {(1, b): 1.0 * b for b in settings.sizes}
    table |= {(2, b): 0.6 * b**0.9 for b in settings.sizes}
    drive(sampler, table)
    assert {batch for threads, batch in sampler.samples if threads == 1} <= {1, 2}
    assert {batch for threads, batch in sampler.samples if threads == 2} >= {1, 2, 4, 8}


def test_a_budget_that_loading_ate_up_still_looks_at_every_thread_count() -> None:
    settings = SamplerSettings(cores=2, max_batch=32, start_s=1.2)
    latency_ms = {
        1: (0.42, 0.75, 1.35, 2.5, 4.8, 9.4),
        2: (0.40, 0.58, 0.85, 1.35, 2.3, 4.4),
    }
    sampler = LazySampler(settings, budget_s=6.0)
    left_s, begun = 6.0 - settings.start_s, {2}
    while (measure := sampler.next(left_s)) is not None:
        left_s -= 0.0 if measure.threads in begun else settings.start_s
        begun.add(measure.threads)
        mean_ms = latency_ms[measure.threads][settings.sizes.index(measure.batch)]
        left_s -= 30 * mean_ms / 1e3
        noisy = Sample(iterations=20, mean_ms=mean_ms, variance=(0.3 * mean_ms) ** 2)
        sampler.record(measure.threads, measure.batch, noisy)
    assert {(2, 2), (2, 4), (2, 8), (1, 2), (1, 4), (1, 8)} <= set(sampler.samples)


def test_one_disturbed_iteration_does_not_settle_the_mean() -> None:
    run = PointRun(IterationRule(max_iterations=20, relative_error=0.0, clip=1.5))
    for k in range(20):
        run.record(100.0 if k == 10 else 1.0)
    assert run.sample.mean_ms == pytest.approx(1.025)
    assert run.timed_ms == pytest.approx(119.0)
    assert run.iterations == 20


def test_a_noisy_point_that_a_plan_rests_on_is_measured_again() -> None:
    settings = SamplerSettings(cores=2, max_batch=1)
    sampler = LazySampler(settings, budget_s=1e9)
    sampler.record(1, 1, Sample(iterations=1, mean_ms=100.0))
    sampler.record(2, 1, Sample(iterations=1, mean_ms=101.0))
    measure = sampler.next(1e9)
    assert measure is not None
    assert measure.rule.relative_error < 0.05


def test_sizes_must_be_a_chain() -> None:
    with pytest.raises(InvalidInput, match="6 is not a larger multiple of 4"):
        LazySampler(SamplerSettings(cores=1, sizes=(1, 4, 6)), budget_s=1.0)


def test_the_grid_asks_for_every_point_once() -> None:
    sizes = (1, 2, 4)
    sampler = GridSampler(cores=3, sizes=sizes, rng=np.random.default_rng(0), measured=[(1, 1, exact(1.0))])
    asked = []
    while (measure := sampler.next(1.0)) is not None:
        asked.append((measure.threads, measure.batch))
        sampler.record(*asked[-1], exact(1.0))
    assert sorted([*asked, (1, 1)]) == [(t, b) for t in (1, 2, 3) for b in sizes]
    assert asked != sorted(asked)
    assert len(sampler.samples) == 9


def test_the_grid_leaves_out_what_failed() -> None:
    sampler = GridSampler(cores=1, sizes=(1, 2, 4), rng=np.random.default_rng(0))
    sampler.fail(1, 2)
    assert sampler.points_left == 1


# --- iterations -----------------------------------------------------------------------------------


def visit(rule: IterationRule, times_ms: list[float], before: Sample | None = None) -> PointRun:
    run = PointRun(rule, before=before)
    times = iter(times_ms)
    while run.wants_warm_up:
        run.record_warm_up(next(times))
    while run.wants_iteration:
        run.record(next(times))
    return run


def test_warms_up_until_enough_time_or_ten_times() -> None:
    rule = IterationRule(warm_up_s=0.03)
    assert visit(rule, [1.0] * 200).warm_ups == 10
    assert visit(rule, [10.0] * 200).warm_ups == 3
    assert visit(rule, [500.0] * 200).warm_ups == 1


def test_a_slow_point_needs_no_second_warm_up() -> None:
    assert visit(IterationRule(), [500.0] * 50, exact(500.0)).warm_ups == 0
    assert visit(IterationRule(), [1.0] * 200, exact(1.0)).warm_ups == 10


def test_stops_once_the_mean_is_known() -> None:
    rng = np.random.default_rng(0)
    steady = visit(IterationRule(timed_s=1e9), [10.0] * 200)
    noisy = visit(IterationRule(timed_s=1e9), list(10 * (1 + 0.1 * rng.standard_normal(200))))
    assert steady.iterations < noisy.iterations < 100
    assert noisy.sample.relative_error <= 0.02


def test_stops_at_the_most_iterations_and_at_the_end_of_the_time() -> None:
    wild = [1.0, 30.0] * 200
    assert visit(IterationRule(timed_s=1e9), wild).iterations == 100
    assert visit(IterationRule(timed_s=0.5), [200.0, 400.0] * 20).iterations == 2


def test_merged_visits_are_one_sample() -> None:
    values = np.array([9.0, 11.0, 10.5, 12.0, 8.0])
    parts = [
        Sample(iterations=len(v), mean_ms=float(v.mean()), variance=float(v.var(ddof=1)) if len(v) > 1 else 0)
        for v in (values[:1], values[1:])
    ]
    merged = parts[0].merged(parts[1])
    assert merged.iterations == 5
    assert merged.mean_ms == pytest.approx(values.mean())
    assert merged.variance == pytest.approx(values.var(ddof=1))


# --- the published tables -------------------------------------------------------------------------


@pytest.mark.skipif(not TABLES.is_dir(), reason="the published tables are not beside this checkout")
@pytest.mark.parametrize("cores", [12, 16])
def test_replay_of_a_published_table_is_quick_and_good(cores: int) -> None:
    truth = read_csv(TABLES / "resnet_profile.csv", mode="script")
    measured, _, seconds = lazy_replay.replay(truth, cores=cores, seed=0)
    regret = lazy_replay.regrets(truth, measured, cores=cores, batches=range(1, 1025, 8))
    assert seconds <= 360
    assert len(measured.points) < 11 * cores
    assert np.median(regret) <= 0.01
    assert regret.max() <= 0.05
