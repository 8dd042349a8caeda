"""Every search against brute force, on small tables: any sizes, any latencies, points missing."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Objective, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.planning import recurrence, spread, threshold
from partita.planning.micro_batches import batch_costs
from partita.planning.optimizer import Optimizer
from partita.planning.robust import NEAR
from partita.planning.table import LatencyTable

Points = dict[tuple[int, int], float]
SIZES = ((1, 2, 4, 8), (1, 2, 4), (1, 3, 5), (2, 3, 7), (4,), (1, 16), (1, 2, 3, 4, 5, 6))
SOCKETS = ((6,), (3, 3), (4, 2), (2, 2, 2))


@dataclass(frozen=True)
class Case:
    """One question: a table, T cores of these sockets, B items."""

    points: Points
    sockets: tuple[int, ...]
    cores: int
    batch: int
    micro_batches: bool
    max_share: int | None

    def optimizer(
        self, memory: dict[tuple[int, int], int] | None = None, limit: int | None = None
    ) -> Optimizer:
        profile = Profile(
            ProfilePoint(
                threads=t, batch=b, mean_ms=ms, resident_bytes=None if memory is None else memory[t, b]
            )
            for (t, b), ms in self.points.items()
        )
        return Optimizer(
            profile,
            sockets=self.sockets,
            micro_batches=self.micro_batches,
            memory_bytes=limit,
            max_instance_batch=self.max_share,
        )


@st.composite
def tables(draw: st.DrawFn) -> Points:
    # Few different latencies make ties likely; that they neither rise nor fall in order is the point.
    keys = [(t, b) for t in range(1, 7) for b in draw(st.sampled_from(SIZES))]
    chosen = draw(st.lists(st.sampled_from(keys), min_size=1, unique=True))
    latency = st.one_of(st.integers(1, 9).map(float), st.floats(0.5, 50.0))
    return {key: draw(latency) for key in chosen}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sockets = draw(st.sampled_from(SOCKETS))
    return Case(
        points=draw(tables()),
        sockets=sockets,
        cores=draw(st.integers(1, sum(sockets))),
        batch=draw(st.integers(1, 12)),
        micro_batches=draw(st.booleans()),
        max_share=draw(st.none() | st.integers(1, 12)),
    )


def instance_ms(points: Points, threads: int, items: int, *, micro_batches: bool = True) -> float:
    """Least time of any executions that serve the items, by trying them all."""
    sizes = {b: ms for (t, b), ms in points.items() if t == threads}

    @cache
    def least(left: int) -> float:
        if left <= 0:
            return 0.0
        once = (ms for b, ms in sizes.items() if b >= left)
        again = (ms + least(left - b) for b, ms in sizes.items()) if micro_batches else iter(())
        return min((*once, *again), default=inf)

    return least(items)


def least_by_trying(case: Case) -> float:
    """The least latency over every way to put instances into sockets and share out the items."""
    threads = sorted({t for t, _ in case.points})
    most = min(case.batch, case.max_share or case.batch)
    time = {
        (t, b): instance_ms(case.points, t, b, micro_batches=case.micro_batches)
        for t in threads
        for b in range(1, most + 1)
    }

    @cache
    def least(free: tuple[int, ...], cores: int, items: int) -> float:
        if items == 0:
            return 0.0
        found = inf
        for (t, b), ms in time.items():
            if ms >= found or b > items or t > cores:
                continue
            for k in range(len(free)):
                if t <= free[k]:
                    rest = tuple(sorted((*free[:k], free[k] - t, *free[k + 1 :])))
                    found = min(found, max(ms, least(rest, cores - t, items - b)))
        return found

    return least(tuple(sorted(case.sockets)), case.cores, case.batch)


def partitions(points: Points, cores: int, batch: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield every multiset of points of at most so many cores and exactly so many items."""
    for count in range(1, min(cores, batch) + 1):
        for chosen in combinations_with_replacement(sorted(points), count):
            if sum(t for t, _ in chosen) <= cores and sum(b for _, b in chosen) == batch:
                yield chosen


def fit_into(sockets: tuple[int, ...], threads: tuple[int, ...]) -> bool:
    """Whether instances of these thread counts each find room in one socket."""
    if not threads:
        return True
    return any(
        fit_into((*sockets[:k], sockets[k] - threads[0], *sockets[k + 1 :]), threads[1:])
        for k in range(len(sockets))
        if sockets[k] >= threads[0]
    )


def check(plan: Plan, case: Case) -> None:
    assert sum(i.threads for i in plan.instances) <= case.cores
    assert sum(i.batch for i in plan.instances) == case.batch
    assert fit_into(case.sockets, tuple(i.threads for i in plan.instances))
    for instance in plan.instances:
        assert instance.batch <= (case.max_share or case.batch)
        assert case.micro_batches or len(instance.executions) == 1
        assert all((instance.threads, size) in case.points for size in instance.executions)
    slowest = max(sum(case.points[i.threads, size] for size in i.executions) for i in plan.instances)
    assert plan.expected_ms == pytest.approx(slowest)


@settings(deadline=None, max_examples=100)
@given(tables(), st.integers(1, 4), st.integers(1, 12))
def test_recurrence_is_the_best_of_all_partitions(points: Points, cores: int, batch: int) -> None:
    least = min(
        (max(points[key] for key in chosen) for chosen in partitions(points, cores, batch)), default=inf
    )
    solution = recurrence.solve(LatencyTable.from_points(points), cores, batch)
    assert (inf if solution is None else solution.latency_ms) == least


@settings(deadline=None, max_examples=300)
@given(cases())
def test_plan_is_the_fastest_there_is(case: Case) -> None:
    least = least_by_trying(case)
    optimizer = case.optimizer()
    if least == inf:
        with pytest.raises(NoFeasiblePlan):
            optimizer.plan(case.cores, case.batch)
        return
    plan = optimizer.plan(case.cores, case.batch)
    check(plan, case)
    assert plan.expected_ms == pytest.approx(least)
    assert optimizer.plan(case.cores, case.batch) is plan


@settings(deadline=None, max_examples=100)
@given(tables(), st.integers(1, 6), st.integers(1, 12), st.booleans())
def test_search_is_never_worse_than_the_recurrence(
    points: Points, cores: int, batch: int, micro_batches: bool
) -> None:
    table = LatencyTable.from_points(points)
    exact = recurrence.solve(table, cores, batch)
    assume(exact is not None)
    assert exact is not None
    found = threshold.solve(batch_costs(table, batch, micro_batches=micro_batches), (cores,), cores, batch)
    assert found is not None
    assert found.latency_ms <= exact.latency_ms * (1 + 1e-12)


@settings(deadline=None, max_examples=100)
@given(cases())
def test_candidates_differ_in_number_and_none_beats_the_best(case: Case) -> None:
    optimizer = case.optimizer()
    assume(least_by_trying(case) < inf)
    plans = optimizer.candidates(case.cores, case.batch, 4)
    for plan in plans:
        check(plan, case)
    kinds = {tuple(sorted(i.threads for i in plan.instances)) for plan in plans}
    assert len(kinds) == len(plans) <= 4
    assert plans[0].expected_ms == optimizer.plan(case.cores, case.batch).expected_ms


@settings(deadline=None, max_examples=150)
@given(cases(), st.sampled_from(Objective), st.floats(0.3, 3.0), st.booleans())
def test_no_instance_takes_longer_than_the_limit(
    case: Case, objective: Objective, ratio: float, early: bool
) -> None:
    least = least_by_trying(case)
    assume(least < inf)
    limit_ms = least * ratio
    optimizer = case.optimizer()
    if ratio < 0.999:
        with pytest.raises(NoFeasiblePlan, match="within"):
            optimizer.plan(case.cores, case.batch, objective, limit_ms)
    elif ratio > 1.001:
        plan = optimizer.plan(case.cores, case.batch, objective, limit_ms, early_answers=early)
        check(plan, case)
        assert plan.expected_ms is not None
        assert plan.expected_ms <= limit_ms


@settings(deadline=None, max_examples=100)
@given(cases())
def test_most_items_per_second_is_no_less_than_that_of_any_plan(case: Case) -> None:
    optimizer = case.optimizer()
    assume(least_by_trying(case) < inf)
    plan = optimizer.plan(case.cores, case.batch, Objective.THROUGHPUT)
    check(plan, case)
    rate = optimizer.items_per_s(plan) * (1 + 1e-9)
    for other in optimizer.candidates(case.cores, case.batch, 12):
        assert optimizer.items_per_s(other) <= rate


@settings(deadline=None, max_examples=100)
@given(tables(), st.data(), st.integers(1, 12), st.booleans())
def test_spread_is_the_best_of_all_splits(
    points: Points, data: st.DataObject, batch: int, micro_batches: bool
) -> None:
    table = LatencyTable.from_points(points)
    rows = data.draw(st.lists(st.integers(0, len(table.threads) - 1), min_size=1, max_size=3))
    costs = batch_costs(table, batch, micro_batches=micro_batches)

    def time(row: int, items: int) -> float:
        return instance_ms(points, int(table.threads[row]), items, micro_batches=micro_batches)

    def best(left: list[int], items: int, least_each: int) -> float:
        if len(left) == 1:
            return time(left[0], items) if items >= least_each else inf
        return min(
            (
                max(time(left[0], n), best(left[1:], items - n, least_each))
                for n in range(least_each, items + 1)
            ),
            default=inf,
        )

    assert spread.latency_ms(costs, rows, batch) == pytest.approx(best(rows, batch, 0))
    shares = spread.shares(costs, rows, batch)
    if shares is None:
        return
    assert [row for row, _ in shares] == rows
    assert sum(items for _, items in shares) == batch
    assert all(items > 0 for _, items in shares)
    assert max(time(row, items) for row, items in shares) == pytest.approx(best(rows, batch, 1))


@st.composite
def with_memory(draw: st.DrawFn) -> tuple[Case, dict[tuple[int, int], int]]:
    """A case, and what every point holds: never less for more items, as where it was measured."""
    case = draw(cases())
    memory: dict[tuple[int, int], int] = {}
    held: dict[int, int] = {}
    for threads, batch in sorted(case.points):
        held[threads] = held.get(threads, 0) + draw(st.integers(0 if threads in held else 1, 10))
        memory[threads, batch] = held[threads]
    return case, memory


def least_memory(case: Case, memory: dict[tuple[int, int], int]) -> float:
    """The least memory of any instances that serve the batch, by trying them all."""
    most = min(case.batch, case.max_share or case.batch)

    def held(threads: int, items: int) -> float:
        sizes = [b for t, b in case.points if t == threads and (case.micro_batches or b >= items)]
        return memory[threads, min(sizes)] if sizes else inf

    @cache
    def least(free: tuple[int, ...], cores: int, items: int) -> float:
        if items == 0:
            return 0.0
        found = inf
        for t in {t for t, _ in case.points if t <= cores}:
            for b in range(1, min(most, items) + 1):
                for k in range(len(free)):
                    if t <= free[k]:
                        rest = tuple(sorted((*free[:k], free[k] - t, *free[k + 1 :])))
                        found = min(found, held(t, b) + least(rest, cores - t, items - b))
        return found

    return least(tuple(sorted(case.sockets)), case.cores, case.batch)


@settings(deadline=None, max_examples=150)
@given(with_memory(), st.integers(1, 40), st.sampled_from(Objective))
def test_memory_limit_is_kept_and_refused_only_where_nothing_fits(
    drawn: tuple[Case, dict[tuple[int, int], int]], limit: int, objective: Objective
) -> None:
    case, memory = drawn
    optimizer = case.optimizer(memory, limit)
    if least_memory(case, memory) > limit:
        with pytest.raises(NoFeasiblePlan):
            optimizer.plan(case.cores, case.batch, objective)
        return
    plan = optimizer.plan(case.cores, case.batch, objective)
    check(plan, case)
    held = [max(memory[i.threads, size] for size in i.executions) for i in plan.instances]
    assert sum(held) == optimizer.memory_of(plan) <= limit
    robust = optimizer.robust(case.cores, case.batch)
    assert optimizer.memory_of(robust) <= limit


@settings(deadline=None, max_examples=100)
@given(cases())
def test_robust_plan_is_nearly_the_least_wrong_of_equal_instances(case: Case) -> None:
    optimizer = case.optimizer()
    assume(least_by_trying(case) < inf)
    plan = optimizer.robust(case.cores, case.batch)
    check(plan, case)
    costs = optimizer.costs(case.batch)
    batches = sorted({1, 2, 4, 8, case.batch} & set(range(1, case.batch + 1)))

    def worst(threads: tuple[int, ...]) -> float:
        rows = [row for t in threads if (row := optimizer.table.row(t)) is not None]
        best = [optimizer.plan(case.cores, b).expected_ms or inf for b in batches]
        return max(spread.latency_ms(costs, rows, b) / ms for b, ms in zip(batches, best, strict=True))

    own = worst(tuple(i.threads for i in plan.instances))
    for threads, most in optimizer.most_instances(case.cores):
        kind = (threads,) * min(most, case.batch)
        if optimizer.spread(kind, case.cores, case.batch) is not None:
            assert own <= worst(kind) * NEAR * (1 + 1e-9)
