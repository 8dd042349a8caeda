"""Several models on one simulated machine: its cores are divided as the head divides them."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from partita.core.errors import InvalidInput
from partita.core.profile import Profile, ProfilePoint
from partita.machines.leases import CoreLeases
from partita.planning.division import Cause, Outcome
from partita.planning.estimator import EstimatorRules
from partita.simulator.arrivals import Arrivals, generate, parse_rate
from partita.simulator.settings import SimulatedLoad, SimulationSettings
from partita.simulator.shared import SharedResult, SharedSimulation
from partita.simulator.simulation import Simulation
from tests.adaptation import CORES, profile


def arrivals(text: str, seed: int = 0) -> Arrivals:
    kind, pieces = parse_rate(text, duration_s=60.0)
    return generate(kind, pieces, np.random.default_rng(seed))


def load(
    name: str, text: str, seed: int = 0, *, known: Profile | None = None, **changes: object
) -> SimulatedLoad:
    settings: dict[str, object] = {"cores": CORES, "max_batch": 128, "load_s": 1.0}
    settings["estimator"] = EstimatorRules(max_batch=128)
    return SimulatedLoad(
        name=name,
        profile=known or profile(),
        arrivals=arrivals(text, seed),
        settings=SimulationSettings(**{**settings, **changes}),  # type: ignore[arg-type]
    )


@cache
def stepping() -> SharedResult:
    """First `a` is asked much and `b` little, then the other way round."""
    return SharedSimulation([load("a", "200@60,5@60", 1), load("b", "5@60,200@60", 2)]).run()


def test_the_cores_follow_the_load_from_one_model_to_the_other() -> None:
    result = stepping()
    first, second = ({name: one.cores_at(at) for name, one in result.models.items()} for at in (59.0, 119.0))
    assert first["a"] > first["b"]
    assert second["b"] > second["a"]
    (divided,) = [d for d in result.divisions if d.outcome is Outcome.DIVIDED and d.now_s > 60.0]
    assert divided.cause is Cause.LOAD
    assert divided.now_s <= 60.0 + 4 * EstimatorRules().interval_s, "two looks, and until B̃ has settled"
    assert not result.overloads


def test_nothing_is_lost_and_the_divided_machine_is_faster() -> None:
    result = stepping()
    fixed = SharedSimulation(
        [load("a", "200@60,5@60", 1, adapt=False), load("b", "5@60,200@60", 2, adapt=False)]
    ).run()
    assert not fixed.divisions
    for name, one in result.models.items():
        assert one.answered == len(one.latencies_s) == fixed.models[name].answered
        assert (one.latencies_s > 0.0).all()
        assert one.decided
        assert fixed.models[name].cores == ((0.0, CORES // 2),)
    late = [(result.models["b"].mean_s(90.0, 120.0)), (fixed.models["b"].mean_s(90.0, 120.0))]
    assert late[0] is not None
    assert late[1] is not None
    assert late[0] < late[1]


def test_the_same_seed_gives_the_same_run() -> None:
    again = SharedSimulation([load("a", "200@60,5@60", 1), load("b", "5@60,200@60", 2)]).run()
    assert again.document() == stepping().document()


def test_a_model_alone_is_served_as_by_a_machine_of_its_own() -> None:
    one = load("a", "10@30,250@40,10@30", 3, batch=1)
    shared = SharedSimulation([one]).run().models["a"]
    alone = Simulation(one.profile, one.arrivals, one.settings).run()
    assert (shared.latencies_s == alone.latencies_s).all()
    assert shared.document() == alone.document()


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of cores leased, after each lease; no core was leased twice."""
    seen: list[int] = []
    lease: Callable[[CoreLeases, int], None] = CoreLeases.lease

    def checked(self: CoreLeases, instance: int) -> None:
        lease(self, instance)
        cores = self.executing_cores()
        assert len(cores) == len(set(cores)), cores
        seen.append(len(cores))

    monkeypatch.setattr(CoreLeases, "lease", checked)
    return seen


def test_never_more_threads_execute_than_there_are_cores(leased: list[int]) -> None:
    SharedSimulation([load("a", "200@40,5@40", 1), load("b", "5@40,200@40", 2)]).run()
    assert max(leased) <= CORES


def thin() -> Profile:
    """Half a millisecond an item on the one core that there is for it."""
    return Profile(ProfilePoint(threads=1, batch=b, mean_ms=0.5 * b) for b in (1, 2, 4, 8))


def test_more_models_than_cores_take_turns(leased: list[int]) -> None:
    """Three models on two cores, half as much as those can do: each gets its turns, no core is used twice."""
    loads = [load(n, "constant:667@5", known=thin(), cores=2, max_batch=8) for n in ("a", "b", "c")]
    result = SharedSimulation(loads).run()
    assert max(leased) <= 2
    assert all(one.answered == len(one.latencies_s) for one in result.models.values())
    assert all(one.cores_at(5.0) == 1 for one in result.models.values())
    assert all(d.shared for d in result.divisions)
    assert max(one.latencies_s.max() for one in result.models.values()) < 0.02
    assert not result.overloads


def test_turns_on_one_core_go_by_weight() -> None:
    """Both want all of it: whose weight is three times as much answers about three times as many."""
    known = thin()
    loads = [
        load(n, "constant:3000@5", known=known, cores=1, max_batch=8, weight=w, max_queue_items=200)
        for n, w in (("a", 1.0), ("b", 3.0))
    ]
    result = SharedSimulation(loads).run()
    answered = {name: one.answered for name, one in result.models.items()}
    assert 2.0 < answered["b"] / answered["a"] < 4.0
    assert result.overloads == ((0.0, 5.0),)


def test_a_weight_brings_cores() -> None:
    texts = (("a", 1.0), ("b", 4.0))
    result = SharedSimulation([load(n, "20@30", weight=w) for n, w in texts]).run()
    assert result.models["b"].cores_at(30.0) > result.models["a"].cores_at(30.0)


def test_more_than_any_division_carries_is_said() -> None:
    result = SharedSimulation([load("a", "constant:50@10,300@10"), load("b", "constant:300@20")]).run()
    assert result.overloads == ((10.0, 20.0),)


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        ([], "no models"),
        ([load("a", "1@1"), load("a", "1@1")], "one of its own"),
        ([load("a", "1@1"), load("b", "1@1", cores=4)], "the same machine"),
    ],
)
def test_what_cannot_be_is_refused(loads: list[SimulatedLoad], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        SharedSimulation(loads)


def test_a_weight_has_to_be_one() -> None:
    with pytest.raises(InvalidInput, match="weight"):
        load("a", "1@1", weight=0.0)


def test_a_profile_without_one_thread_is_simulated_and_fewer_cores_carry_nothing() -> None:
    known = Profile(
        ProfilePoint(threads=t, batch=b, mean_ms=10.0 + b * (1.0 + 15.0 / t)) for t in (2, 4) for b in (1, 8)
    )
    result = SharedSimulation([load("a", "20@20", 1, known=known), load("b", "20@20", 2, known=known)]).run()
    assert all(one.answered for one in result.models.values())
    assert not result.overloads
