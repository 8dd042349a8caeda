"""The decision space against enumeration, and the bounded greedy search against trying everything."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.allocation import AllocationMatrix
from partita.planning.allocation_rate import predicted_items_per_s, rate_predictor
from partita.planning.allocation_search import Duel, Rate, SearchLimits, SearchResult, search
from partita.planning.matrices import count_matrices, count_neighbours, neighbours, scientific

SIZES = ((8,), (8, 32), (8, 16, 32))


def every_matrix(devices: int, models: int, sizes: tuple[int, ...]) -> list[AllocationMatrix]:
    """All valid matrices, by trying every element."""
    elements = product((0, *sizes), repeat=devices * models)
    grids = (AllocationMatrix.of(np.reshape(e, (devices, models)).tolist()) for e in elements)
    return [matrix for matrix in grids if matrix.is_valid]


def difference(a: AllocationMatrix, b: AllocationMatrix) -> int:
    return int(np.count_nonzero(np.array(a.rows) != np.array(b.rows)))


@pytest.mark.parametrize(
    ("devices", "models", "sizes"), [(1, 3, SIZES[2]), (2, 2, SIZES[1]), (3, 2, SIZES[0])]
)
def test_counts_are_those_of_enumeration(devices: int, models: int, sizes: tuple[int, ...]) -> None:
    everything = every_matrix(devices, models, sizes)
    assert len(everything) == count_matrices(devices, models, len(sizes))
    for matrix in everything:
        around = list(neighbours(matrix, sizes))
        assert set(around) == {other for other in everything if difference(matrix, other) == 1}
        assert len(around) == len(set(around)) == count_neighbours(matrix, sizes)


def test_counts_of_the_paper() -> None:
    assert scientific(count_matrices(5, 8, 5)) == "1.3e31"
    sizes = (8, 16, 32, 64, 128)
    alone = AllocationMatrix.of([[8] * 8, *[[0] * 8] * 4])
    everywhere = AllocationMatrix.of([[8] * 8] * 5)
    assert [count_neighbours(m, sizes) for m in (alone, everywhere)] == [192, 200]
    assert scientific(99_999) == "99999"


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_element_that_is_no_batch_size_has_neighbours_too(data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(st.lists(st.sampled_from([0, 4, 8, 32]), min_size=2, max_size=2), min_size=2, max_size=2)
    )
    matrix = AllocationMatrix.of(rows)
    if matrix.is_valid:
        assert len(set(neighbours(matrix, (8, 32)))) == count_neighbours(matrix, (8, 32))


# --- greedy against the best of all -----------------------------------------------------------------


class Machine:
    """A made-up machine whose matrices are assessed by a formula.

    Worker ⟨d, m, b⟩ alone answers b / L[d, m, b] items per ms, L = (overhead_m + cost_m · b) / speed_d. The k
    workers of a device share it evenly. The ensemble is as fast as its slowest member.
    """

    def __init__(self, seed: int, sizes: tuple[int, ...] = (8, 32)) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = sizes
        self.devices, self.models = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        overhead_ms, cost_ms = rng.uniform(0, 40, self.models), rng.uniform(1, 20, self.models)
        speed = rng.uniform(0.3, 3, self.devices)
        self.latency_ms = {
            (d, m, b): (overhead_ms[m] + cost_ms[m] * b) / speed[d] * rng.uniform(0.8, 1.25)
            for d, m, b in product(range(self.devices), range(self.models), sizes)
        }
        self.assessed = 0

    def bench(self, matrix: AllocationMatrix) -> float:
        self.assessed += 1
        rates = np.zeros(self.models)
        for d, row in enumerate(matrix.rows):
            sharing = sum(map(bool, row))
            for m, b in enumerate(row):
                if b:
                    rates[m] += 1000 * b / self.latency_ms[d, m, b] / sharing
        return float(rates.min())

    def start(self) -> AllocationMatrix:
        """What worst-fit decreasing makes of models of equal size on devices of equal size."""
        matrix = AllocationMatrix.empty(self.devices, self.models)
        for model in range(self.models):
            matrix = matrix.with_element(model % self.devices, model, self.sizes[0])
        return matrix

    def optimum(self) -> float:
        return max(map(self.bench, every_matrix(self.devices, self.models, self.sizes)))


def share_of_optimum(seed: int, limits: SearchLimits) -> tuple[float, SearchResult]:
    machine = Machine(seed)
    result = search(machine.start(), machine.sizes, machine.bench, limits)
    assert result.matrix.is_valid
    assert result.items_per_s == machine.bench(result.matrix) >= result.start_items_per_s
    return result.items_per_s / OPTIMA[seed], result


SEEDS = range(200)
OPTIMA: dict[int, float] = {}


@pytest.fixture(scope="module", autouse=True)
def _optima() -> None:
    cache: dict[tuple[int, int], list[AllocationMatrix]] = {}
    for seed in SEEDS:
        machine = Machine(seed)
        key = machine.devices, machine.models
        if key not in cache:
            cache[key] = every_matrix(*key, machine.sizes)
        OPTIMA[seed] = _fastest(machine, cache[key])


def _fastest(machine: Machine, everything: list[AllocationMatrix]) -> float:
    """`Machine.bench` over all matrices at once."""
    grid = np.array([matrix.rows for matrix in everything])  # (n, D, M)
    rate = np.zeros(grid.shape)
    for (d, m, b), ms in machine.latency_ms.items():
        rate[:, d, m] += np.where(grid[:, d, m] == b, 1000 * b / ms, 0.0)
    sharing = np.maximum((grid > 0).sum(axis=2, keepdims=True), 1)
    return float((rate / sharing).sum(axis=1).min(axis=1).max())


def test_near_the_optimum_and_never_worse_than_the_start() -> None:
    shares = [share_of_optimum(seed, SearchLimits(seed=seed))[0] for seed in SEEDS]
    assert np.mean(shares) >= 0.99, np.mean(shares)
    assert min(shares) >= 0.85, min(shares)
    assert max(shares) <= 1 + 1e-9


@pytest.mark.parametrize("bound", [{"max_iter": 0}, {"max_iter": 2}, {"max_neighs": 3}, {"restarts": 0}])
def test_bounds_are_kept(bound: dict[str, int]) -> None:
    for seed in range(40):
        limits = SearchLimits(**{"max_iter": 40, "seed": seed, **bound})
        _, result = share_of_optimum(seed, limits)
        assert result.iterations <= limits.max_iter
        if limits.max_iter == 0:
            assert result.matrix == result.start
            assert result.assessed == 1
        per_iteration: dict[tuple[int, int], int] = {}
        for one in result.log:
            key = one.climb, one.iteration
            per_iteration[key] = per_iteration.get(key, 0) + 1
            assert one.climb <= limits.restarts
        assert all(n <= limits.max_neighs for (_, k), n in per_iteration.items() if k > 0)
        assert 0 < result.visited_rate <= 1


def test_the_same_seed_gives_the_same_and_nothing_is_assessed_twice() -> None:
    for seed in range(30):
        limits = SearchLimits(max_iter=30, max_neighs=4, seed=seed)
        machines = Machine(seed), Machine(seed)
        first, second = (search(m.start(), m.sizes, m.bench, limits) for m in machines)
        assert first == second
        assert machines[0].assessed == first.assessed == len({one.matrix for one in first.log})


def test_each_climb_rises_strictly_by_single_changes_or_two_where_it_is_stuck() -> None:
    for seed in range(30):
        machine = Machine(seed)
        result = search(machine.start(), machine.sizes, machine.bench, SearchLimits(seed=seed))
        rate_of = {one.matrix: one.items_per_s for one in result.log}
        for path in result.paths:
            assert all(rate_of[a] < rate_of[b] and difference(a, b) <= 2 for a, b in pairwise(path))
            for a, b in pairwise(path):
                if difference(a, b) == 2:
                    assert all(rate_of[one] <= rate_of[a] for one in neighbours(a, machine.sizes))
        assert result.items_per_s == max(one.items_per_s for one in result.log)


def test_a_prediction_finds_more_with_fewer_assessments() -> None:
    """With a prediction that ranks as the bench does, four neighbours an iteration reach the optimum."""
    shares = []
    for seed in SEEDS:
        machine = Machine(seed)
        predict = Machine(seed).bench
        limits = SearchLimits(max_iter=20, max_neighs=4, restarts=3, seed=seed)
        result = search(machine.start(), machine.sizes, machine.bench, limits, predict=predict)
        shares.append(result.items_per_s / OPTIMA[seed])
        assert result.log[0].predicted_items_per_s == result.log[0].items_per_s
    assert np.mean(shares) >= 0.97
    assert min(shares) >= 0.75


def test_others_are_assessed_beside_the_start_and_the_fastest_is_begun_from() -> None:
    for seed in range(20):
        machine = Machine(seed)
        everywhere = AllocationMatrix(((machine.sizes[-1],) * machine.models,) * machine.devices)
        limits = SearchLimits(restarts=0)
        found = search(machine.start(), machine.sizes, machine.bench, limits, others=[everywhere])
        assert found.items_per_s >= machine.bench(everywhere)
        assert found.items_per_s >= machine.bench(machine.start())
        assert found.paths[0][0] in (machine.start(), everywhere)


def test_once_over_the_best_so_far_is_returned() -> None:
    machine = Machine(3)
    result = search(machine.start(), machine.sizes, machine.bench, is_over=lambda: machine.assessed >= 5)
    assert result.assessed == 5
    assert result.items_per_s == max(one.items_per_s for one in result.log)


def noisy(machine: Machine, seed: int, noise: float) -> tuple[Rate, Duel]:
    """A bench whose figures are off by some noise, and what measures two matrices again."""
    rng = np.random.default_rng(seed)

    def bench(matrix: AllocationMatrix) -> float:
        return float(machine.bench(matrix) * rng.lognormal(0, noise))

    def again(a: AllocationMatrix, b: AllocationMatrix) -> tuple[float, float]:
        return (bench(a) + bench(a)) / 2, (bench(b) + bench(b)) / 2

    return bench, again


def test_with_noise_steps_that_are_confirmed_lead_down_less_often() -> None:
    down = {True: 0, False: 0}
    for seed in range(60):
        for confirmed in down:
            machine = Machine(seed)
            bench, again = noisy(machine, seed, 0.1)
            limits = SearchLimits(max_iter=20, max_neighs=12, restarts=0, seed=seed)
            found = search(machine.start(), machine.sizes, bench, limits, again=again if confirmed else None)
            (path,) = found.paths
            down[confirmed] += sum(machine.bench(b) < machine.bench(a) for a, b in pairwise(path))
    assert down[True] < down[False] / 2, down


def test_what_was_measured_again_counts_and_is_told() -> None:
    sizes, start = (8, 32), AllocationMatrix.of([[8]])
    better = AllocationMatrix.of([[32]])
    told: list[tuple[AllocationMatrix, float]] = []
    found = search(
        start,
        sizes,
        lambda matrix: 2.0 if matrix == better else 1.0,
        SearchLimits(restarts=0),
        again=lambda *_: (1.5, 1.2),
        told=lambda one: told.append((one.matrix, one.items_per_s)),
    )
    assert (found.matrix, found.items_per_s) == (start, 1.5), "the step was not confirmed"
    assert [one.items_per_s for one in found.log] == [1.5, 1.2]
    assert told == [(start, 1.0), (better, 2.0), (start, 1.5), (better, 1.2)]
    assert found.assessed == 2


def test_once_over_no_step_is_taken_that_was_not_measured_again_and_no_others_are_measured() -> None:
    sizes, start = (8, 32), AllocationMatrix.of([[8]])
    measured: list[AllocationMatrix] = []

    def bench(matrix: AllocationMatrix) -> float:
        measured.append(matrix)
        return float(matrix.rows[0][0])

    found = search(
        start,
        sizes,
        bench,
        is_over=lambda: len(measured) >= 2,
        again=lambda *_: pytest.fail("there is no time for it"),
        others=[AllocationMatrix.of([[4]]), AllocationMatrix.of([[2]])],
    )
    assert measured == [start, AllocationMatrix.of([[4]])]
    assert found.matrix == start
    measured.clear()
    found = search(
        start,
        sizes,
        bench,
        is_over=lambda: len(measured) >= 2,
        again=lambda *_: pytest.fail("there is no time for it"),
    )
    assert (measured, found.matrix) == ([start, AllocationMatrix.of([[32]])], start), "unconfirmed"


def test_the_result_is_what_the_log_says_after_everything_that_was_measured_again() -> None:
    for seed in range(60):
        machine = Machine(seed)
        bench, again = noisy(machine, seed, 0.1)
        limits = SearchLimits(max_iter=20, max_neighs=12, restarts=4, seed=seed)
        found = search(machine.start(), machine.sizes, bench, limits, again=again)
        rates = {one.matrix: one.items_per_s for one in found.log}
        assert found.items_per_s == rates[found.matrix] >= found.start_items_per_s == rates[found.start]


# --- the prediction ---------------------------------------------------------------------------------


def test_models_on_one_device_add_their_times() -> None:
    latency_ms = {(0, 0, 8): 8.0, (0, 1, 8): 24.0, (0, 2, 8): 40.0}
    predicted = predicted_items_per_s(AllocationMatrix.of([[8, 8, 8]]), latency_ms)
    assert predicted == pytest.approx(1000 / (1 + 3 + 5), rel=0.01)


def test_workers_of_one_model_add_their_rates_and_the_slowest_member_decides() -> None:
    latency_ms = {(0, 0, 8): 8.0, (1, 0, 16): 8.0, (2, 1, 8): 2.0}
    matrix = AllocationMatrix.of([[8, 0], [16, 0], [0, 8]])
    assert predicted_items_per_s(matrix, latency_ms) == pytest.approx(3000)


def test_a_worker_that_is_not_known_predicts_nothing() -> None:
    predict = rate_predictor({(0, 0, 8): 1.0})
    assert predict(AllocationMatrix.of([[16]])) == 0.0
    assert predict(AllocationMatrix.of([[8]])) == 8000.0


@given(st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_the_prediction_is_between_even_sharing_and_having_every_device_alone(seed: int) -> None:
    machine = Machine(seed)
    rng = np.random.default_rng(seed)
    rows = rng.choice([0, *machine.sizes], size=(machine.devices, machine.models))
    matrix = AllocationMatrix.of(rows.tolist())
    if not matrix.is_valid:
        return
    predicted = predicted_items_per_s(matrix, machine.latency_ms)
    alone = np.zeros(machine.models)
    for worker in matrix.workers():
        alone[worker.model] += 1000 * worker.batch / machine.latency_ms[worker]
    assert machine.bench(matrix) <= predicted * (1 + 1e-9)
    assert predicted <= alone.min() * (1 + 1e-9)
