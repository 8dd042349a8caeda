"""The frontier is the optimizer's latency for every B at once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.profile import Profile, ProfilePoint
from partita.planning.optimizer import Optimizer
from partita.planning.sampling_frontier import UNKNOWN_MS, FrontierSolver

STEP = 0.005


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    cores = draw(st.integers(1, 5))
    sizes = draw(st.sampled_from([(1, 2, 4, 8), (1, 3, 6), (1,), (1, 2)]))
    rows = draw(
        st.lists(
            st.lists(st.floats(1.0, 100.0), min_size=len(sizes), max_size=len(sizes)),
            min_size=cores,
            max_size=cores,
        )
    )
    return np.array(rows), sizes


@settings(deadline=None, max_examples=60)
@given(tables())
def test_frontier_is_the_optimizers_latency(drawn: tuple[np.ndarray, tuple[int, ...]]) -> None:
    table, sizes = drawn
    frontier = FrontierSolver(cores=len(table), sizes=sizes, max_items=12, step=STEP).solve(table)
    optimizer = Optimizer(
        Profile(
            ProfilePoint(threads=t + 1, batch=b, mean_ms=table[t, k])
            for t in range(len(table))
            for k, b in enumerate(sizes)
        )
    )
    for batch in range(1, 13):
        best = optimizer.plan(len(table), batch).expected_ms
        assert best is not None
        assert best * (1 - 1e-9) <= frontier.latency_ms[batch] <= best * np.exp(STEP) * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(tables(), st.randoms(use_true_random=False))
def test_plans_rest_on_usable_points_only(drawn: tuple[np.ndarray, tuple[int, ...]], random: object) -> None:
    table, sizes = drawn
    table = table.copy()
    table[0, 0] = UNKNOWN_MS
    table[-1, -1] = 50.0
    frontier = FrontierSolver(cores=len(table), sizes=sizes, max_items=12).solve(table)
    assert (frontier.latency_ms[1:] < UNKNOWN_MS).all()
    if table.size > 1:
        assert not frontier.weights[1:, 0, 0].any()
    assert (frontier.weights[1:] > 0).any(axis=(1, 2)).all()


@settings(deadline=None, max_examples=60)
@given(tables())
def test_weights_are_parts_of_the_latency(drawn: tuple[np.ndarray, tuple[int, ...]]) -> None:
    """No instance spends longer on one point than the plan takes."""
    table, sizes = drawn
    frontier = FrontierSolver(cores=len(table), sizes=sizes, max_items=12, step=STEP).solve(table)
    assert (frontier.weights[1:] <= 1 + 1e-9).all()
    assert (frontier.weights[1:].sum(axis=(1, 2)) >= np.exp(-STEP) / len(sizes) / len(table)).all()


@settings(deadline=None, max_examples=40)
@given(tables(), st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=13, max_size=13))
def test_what_is_spent_is_the_sum_over_batches(
    drawn: tuple[np.ndarray, tuple[int, ...]], drawn_importance: list[float]
) -> None:
    table, sizes = drawn
    importance = np.array(drawn_importance)
    frontier = FrontierSolver(cores=len(table), sizes=sizes, max_items=12, step=STEP).solve(table)
    expected = np.tensordot(importance, frontier.weights, axes=1)
    assert np.allclose(frontier.spent(importance), expected)
