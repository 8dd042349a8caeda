"""The plans of an ensemble: split so that the slowest member is as fast as it can be, or in turns."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Plan
from partita.core.profile import Profile, ProfilePoint
from partita.core.topology import LogicalCpu, Topology
from partita.planning.division import Party, wanted_cores
from partita.planning.ensemble_choices import EnsembleChoices, EnsemblePlanner, parts_of, takes_turns
from partita.planning.joint import Demand
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place


def optimizer(work: float, fixed: float = 1.0) -> Optimizer:
    return Optimizer(
        Profile(
            ProfilePoint(threads=t, batch=b, mean_ms=fixed + work * b / t)
            for t in range(1, 9)
            for b in (1, 2, 4, 8, 16)
        )
    )


def choices(cores: int, *works: float, fixed: float = 1.0) -> EnsembleChoices:
    machine = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=c, cpu=c) for c in range(cores)))
    return EnsembleChoices(
        {name: optimizer(work, fixed) for name, work in zip("abc", works, strict=False)},
        cores=cores,
        max_batch=64,
        place=lambda plan: place(plan, machine),
    )


def threads(plan: Plan) -> dict[str, int]:
    return {name: part.cores for name, part in parts_of(plan).items()}


def test_the_member_that_has_more_to_do_gets_more_cores() -> None:
    made = choices(8, 10.0, 30.0)
    plan = made.best(8)
    assert threads(plan) == {"a": 2, "b": 6}
    assert not takes_turns(plan)
    assert plan.batch == 8
    assert plan.expected_ms is not None
    assert made.latency_ms(plan, 8) <= plan.expected_ms * 1.05
    rates = [made._members[name].items_per_s(part) for name, part in parts_of(plan).items()]
    assert made.items_per_s(plan) == min(rates)


@settings(max_examples=30, deadline=None)
@given(works=st.lists(st.integers(1, 40), min_size=2, max_size=3), batch=st.sampled_from([1, 4, 16]))
def test_the_slowest_member_is_as_fast_as_in_the_best_of_all_splits(works: list[int], batch: int) -> None:
    made = {str(n): optimizer(float(work)) for n, work in enumerate(works)}
    plan = EnsemblePlanner(made).plan(6, batch)
    splits = (cores for cores in product(range(1, 7), repeat=len(works)) if sum(cores) <= 6)
    best = min(
        max(one.plan(t, batch).expected_ms or 0.0 for one, t in zip(made.values(), cores, strict=True))
        for cores in splits
    )
    assert plan.expected_ms is not None
    assert best <= plan.expected_ms <= 1.03 * best


def test_fewer_cores_than_members_are_shared_in_turns() -> None:
    made = choices(2, 10.0, 10.0, 10.0)
    plan = made.best(4)
    assert takes_turns(plan)
    assert set(threads(plan)) == {"a", "b", "c"}
    alone = [made._members[name].latency_ms(part, 4) for name, part in parts_of(plan).items()]
    assert made.latency_ms(plan, 4) == pytest.approx(sum(alone))


def test_a_planner_has_members_take_turns_where_they_are_more_than_the_cores() -> None:
    """Else the cores could not be divided at all."""
    made = {name: optimizer(work) for name, work in zip("abc", (10.0, 20.0, 30.0), strict=True)}
    planner, alone = EnsemblePlanner(made), [one.plan(2, 4, early_answers=True) for one in made.values()]
    plan = planner.plan(2, 4)
    assert takes_turns(plan)
    assert set(threads(plan)) == {"a", "b", "c"}
    assert plan.expected_ms == pytest.approx(sum(one.expected_ms or 0.0 for one in alone))
    rates = [one.items_per_s(part) for one, part in zip(made.values(), alone, strict=True)]
    assert planner.items_per_s(plan) == pytest.approx(1 / sum(1 / rate for rate in rates))
    assert not takes_turns(planner.plan(3, 4))
    with pytest.raises(NoFeasiblePlan):
        planner.apart(2, 4)
    machine = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=c, cpu=c) for c in range(4)))
    ensemble = Party(name="e", cores=(0, 1, 2, 3), demand=Demand(name="e", optimizer=planner, batch=1))
    assert wanted_cores([ensemble], (0, 1), machine).cores == {"e": (0, 1)}
    other = Party(name="o", cores=(1,), demand=Demand(name="o", optimizer=made["a"], batch=1))
    assert wanted_cores([ensemble, other], (0, 1), machine).cores == {"e": (0,), "o": (1,)}


def test_other_batches_for_the_same_instances() -> None:
    made = choices(4, 10.0, 10.0)
    plan = made.best(1)
    more = made.rebatched(plan, 16)
    assert more is not None
    assert [(i.model, i.cores) for i in more.instances] == [(i.model, i.cores) for i in plan.instances]
    assert more.batch == 16
    assert made.items_per_s(more) > made.items_per_s(plan)
    assert made.thinner(plan, 16) is None
    assert made.execution_ms(plan, 1) > 0.0
