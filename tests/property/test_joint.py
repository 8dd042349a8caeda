"""Dividing the cores among models: as good as trying every division."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.profile import Profile, ProfilePoint
from partita.planning.joint import Demand, split
from partita.planning.optimizer import Optimizer

MOST_CORES = 6
POINTS = st.dictionaries(
    st.tuples(st.integers(1, MOST_CORES), st.sampled_from([1, 2, 4])),
    st.integers(1, 60).map(float),
    min_size=1,
    max_size=8,
)
MODELS = st.lists(
    st.tuples(POINTS, st.integers(1, 5), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=3
)


def optimizer(points: dict[tuple[int, int], float]) -> Optimizer:
    return Optimizer(Profile(ProfilePoint(threads=t, batch=b, mean_ms=ms) for (t, b), ms in points.items()))


def weighted_ms(demand: Demand, cores: int) -> float:
    try:
        plan = demand.optimizer.plan(cores, demand.batch)
    except (NoFeasiblePlan, InvalidInput):
        return float("inf")
    enough = demand.optimizer.items_per_s(plan) >= demand.rate
    return demand.weight * (plan.expected_ms or 0.0) if enough else float("inf")


def best_of_all(demands: list[Demand], cores: int) -> float:
    """The least worst weighted latency over every division, the slow way; infinity if there is none."""
    curves = [[weighted_ms(demand, t) for t in range(cores + 1)] for demand in demands]
    divisions = product(range(1, cores + 1), repeat=len(demands))
    return min(
        (
            max(min(curve[: t + 1]) for curve, t in zip(curves, ts, strict=True))
            for ts in divisions
            if sum(ts) <= cores
        ),
        default=float("inf"),
    )


@settings(max_examples=150, deadline=None)
@given(models=MODELS, cores=st.integers(1, MOST_CORES))
def test_the_division_is_as_good_as_the_best_of_all(
    models: list[tuple[dict[tuple[int, int], float], int, float]], cores: int
) -> None:
    demands = [
        Demand(name=str(n), optimizer=optimizer(points), batch=batch, weight=weight)
        for n, (points, batch, weight) in enumerate(models)
    ]
    if any(weighted_ms(demand, cores) == float("inf") for demand in demands):
        with pytest.raises(NoFeasiblePlan, match="model"):
            split(demands, cores)
        return
    joint = split(demands, cores)
    best = best_of_all(demands, cores)
    assert joint.shared == (best == float("inf"))
    assert [share.name for share in joint.shares] == [demand.name for demand in demands]
    for share, demand in zip(joint.shares, demands, strict=True):
        assert sum(i.threads for i in share.plan.instances) <= share.cores <= cores
        assert share.plan.batch == demand.batch
        assert share.weighted_ms == demand.weight * (share.plan.expected_ms or 0.0)
    if not joint.shared:
        assert joint.worst_ms == best
        left = cores - sum(share.cores for share in joint.shares)
        assert left >= 0
        for share, demand in zip(joint.shares, demands, strict=True):
            assert weighted_ms(demand, share.cores + left) >= share.weighted_ms, "what is left helps nobody"


THIN = {(1, 1): 40.0, (2, 1): 24.0, (4, 1): 16.0}


def demand(name: str, *, weight: float = 1.0, rate: float = 0.0) -> Demand:
    return Demand(name=name, optimizer=optimizer(THIN), batch=1, weight=weight, rate=rate)


def test_a_model_that_counts_more_gets_more() -> None:
    even = split([demand("a"), demand("b")], 4)
    assert [share.cores for share in even.shares] == [2, 2]
    uneven = split([demand("a", weight=2.0), demand("b")], 5)
    assert [share.cores for share in uneven.shares] == [4, 1]
    assert not uneven.shared


def test_more_models_than_cores_share_them() -> None:
    joint = split([demand("a"), demand("b"), demand("c")], 2)
    assert joint.shared
    assert [share.cores for share in joint.shares] == [1, 1, 1]
    assert "3 models need 3 cores" in joint.text


def test_a_plan_has_to_carry_the_load_where_one_can() -> None:
    carried = split([demand("a", rate=55.0), demand("b")], 5)
    assert [share.cores for share in carried.shares] == [4, 1]
    too_much = split([demand("a", rate=1000.0), demand("b")], 4)
    assert "cannot carry" in too_much.text
    assert [share.cores for share in too_much.shares] == [2, 2]


@pytest.mark.parametrize(
    ("demands", "cores", "said"),
    [
        ([], 2, "no models"),
        ([demand("a")], 0, "cores 0"),
        ([demand("a", weight=0.0)], 1, "weight"),
        ([demand("a", rate=-1.0)], 1, "items/s"),
    ],
)
def test_demands_that_cannot_be_are_refused(demands: list[Demand], cores: int, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        split(demands, cores)
