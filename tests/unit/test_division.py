"""Who gets which cores, and when they are divided anew."""

import pytest

from partita.core.profile import Profile, ProfilePoint
from partita.core.topology import LogicalCpu, Topology
from partita.planning.core_shares import even_counts, hand_out, share_out
from partita.planning.division import Cause, Division, Outcome, Party, wanted_cores
from partita.planning.joint import Demand
from partita.planning.optimizer import Optimizer

CORES = tuple(range(8))
MACHINE = Topology(cpus=tuple(LogicalCpu(socket=c // 4, node=c // 4, core=c % 4, cpu=c) for c in CORES))
OPTIMIZER = Optimizer(
    Profile(
        ProfilePoint(threads=t, batch=b, mean_ms=b * (2.0 + 30.0 / t))
        for t in range(1, 9)
        for b in (1, 2, 4, 8, 16, 32)
    )
)
DWELL_S = 50.0


def party(name: str, *cores: int, batch: int = 1, rate: float = 0.0, weight: float = 1.0) -> Party:
    demand = Demand(name=name, optimizer=OPTIMIZER, batch=batch, rate=rate, weight=weight, max_batch=64)
    return Party(name=name, cores=cores, demand=demand)


def counts(division: Division, *parties: Party, now_s: float, cause: Cause) -> tuple[Outcome, list[int]]:
    divided = division.decide(parties, CORES, MACHINE, now_s=now_s, cause=cause)
    return divided.outcome, [len(share.cores) for share in divided.shares]


EVEN = (party("a", 0, 1, 2, 3), party("b", 4, 5, 6, 7))


def test_what_fits_stays_and_a_model_that_goes_leaves_its_cores_to_the_others() -> None:
    division = Division()
    assert counts(division, *EVEN, now_s=0.0, cause=Cause.STARTED) == (Outcome.FITS, [4, 4])
    assert counts(division, EVEN[0], now_s=1.0, cause=Cause.WENT) == (Outcome.DIVIDED, [8])
    assert counts(division, party("a", *CORES), party("b", 6, 7), now_s=2.0, cause=Cause.CAME) == (
        Outcome.DIVIDED,
        [4, 4],
    )
    assert [divided.document()["cause"] for divided in division.log] == ["started", "went", "came"]


def test_a_load_is_followed_once_it_stays_and_not_before_the_distance_between_two_divisions() -> None:
    division = Division()
    loaded = party("a", 0, 1, 2, 3, batch=16, rate=100.0), EVEN[1]
    assert counts(division, *loaded, now_s=0.0, cause=Cause.LOAD)[0] is Outcome.UNSETTLED
    outcome, found = counts(division, *loaded, now_s=5.0, cause=Cause.LOAD)
    assert outcome is Outcome.DIVIDED
    assert found[0] > 5
    moved = party("a", *range(found[0])), party("b", *range(found[0], 8), batch=16, rate=100.0)
    assert counts(division, *moved, now_s=10.0, cause=Cause.LOAD)[0] is Outcome.DWELL
    assert counts(division, *moved, now_s=5.0 + DWELL_S, cause=Cause.LOAD)[0] is Outcome.UNSETTLED
    assert counts(division, *moved, now_s=10.0 + DWELL_S, cause=Cause.LOAD)[0] is Outcome.DIVIDED


def test_a_load_that_changes_is_followed_if_the_same_models_are_to_get_cores() -> None:
    """Whether it should be six cores or seven, the next look says; that it should be more, both say."""
    division = Division()
    first, second = ((party("a", 0, 1, 2, 3, batch=batch, rate=100.0), EVEN[1]) for batch in (4, 8))
    assert counts(division, *first, now_s=0.0, cause=Cause.LOAD) == (Outcome.UNSETTLED, [6, 2])
    assert counts(division, *second, now_s=5.0, cause=Cause.LOAD) == (Outcome.DIVIDED, [7, 1])


def test_a_spike_now_and_then_is_not_followed() -> None:
    division = Division()
    spike = party("a", 0, 1, 2, 3, batch=16, rate=100.0), EVEN[1]
    assert counts(division, *spike, now_s=0.0, cause=Cause.LOAD)[0] is Outcome.UNSETTLED
    assert counts(division, *EVEN, now_s=5.0, cause=Cause.LOAD)[0] is Outcome.FITS
    assert counts(division, *spike, now_s=3600.0, cause=Cause.LOAD)[0] is Outcome.UNSETTLED
    assert counts(division, *spike, now_s=3605.0, cause=Cause.LOAD)[0] is Outcome.DIVIDED


def test_loads_that_go_to_and_fro_are_not_followed() -> None:
    division, now_s = Division(), 0.0
    shares = {"a": EVEN[0].cores, "b": EVEN[1].cores}
    for interval in range(100):
        busy = "a" if interval // 2 % 2 else "b"
        parties = [party(n, *shares[n], batch=16 if n == busy else 1, rate=100.0) for n in "ab"]
        divided = division.decide(parties, CORES, MACHINE, now_s=now_s, cause=Cause.LOAD)
        if divided.outcome is Outcome.DIVIDED:
            shares = {share.name: share.cores for share in divided.shares}
        now_s += 5.0
    assert division.divisions <= 10, "one in ten intervals at most"


def test_a_small_gain_is_not_worth_it_and_a_load_that_cannot_be_carried_is() -> None:
    division = Division()
    nearly = party("a", 0, 1, 2, 3, weight=1.1), EVEN[1]
    assert counts(division, *nearly, now_s=0.0, cause=Cause.LOAD)[0] in (Outcome.FITS, Outcome.SMALL_GAIN)
    capacity = OPTIMIZER.items_per_s(OPTIMIZER.plan(4, 32))
    heavy = party("a", 0, 1, 2, 3, rate=1.3 * capacity), EVEN[1]
    counts(division, *heavy, now_s=5.0, cause=Cause.LOAD)
    outcome, found = counts(division, *heavy, now_s=10.0, cause=Cause.LOAD)
    assert outcome is Outcome.DIVIDED
    assert found[0] > 5
    assert "can be carried" in division.log[-1].text
    hopeless = party("a", 0, 1, 2, 3, rate=50 * capacity), EVEN[1]
    assert "cannot carry" in wanted_cores(hopeless, CORES, MACHINE).text


def test_a_division_that_failed_is_tried_again_after_a_pause() -> None:
    division = Division()
    divided = division.decide(EVEN[:1], CORES, MACHINE, now_s=0.0, cause=Cause.WENT)
    division.failed(divided, 1.0, "a: no memory")
    assert division.log[-1].document()["outcome"] == "failed"
    assert not division.may_try_again(2.0)
    assert division.may_try_again(32.0)
    division.succeeded()
    assert division.may_try_again(2.0)


def test_what_is_fixed_keeps_its_cores_and_what_is_unknown_gets_an_even_share() -> None:
    fixed = Party(name="f", cores=(0, 1), is_fixed=True)
    unknown = Party(name="u", cores=(2, 3, 4))
    wanted = wanted_cores([fixed, unknown, party("a", 5, batch=8)], CORES, MACHINE)
    assert {name: len(cores) for name, cores in wanted.cores.items()} == {"f": 2, "u": 3, "a": 3}
    assert wanted.cores["f"] == (0, 1)
    assert sorted(core for cores in wanted.cores.values() for core in cores) == list(CORES)
    assert "u, without a profile" in wanted.text


def test_what_is_fixed_and_had_to_leave_its_cores_goes_back_to_them() -> None:
    division = Division()
    fixed = Party(name="f", cores=(0, 1), is_fixed=True, own=(0, 1, 2, 3))
    divided = division.decide([fixed, EVEN[1]], CORES, MACHINE, now_s=0.0, cause=Cause.CORES)
    assert divided.outcome is Outcome.DIVIDED
    assert [share.cores for share in divided.shares] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_more_models_than_cores_share_them_evenly_and_stay_where_they_are() -> None:
    parties = [party("a", 1), party("b", 0), party("c", 1), party("d", 0)]
    wanted = wanted_cores(parties, (0, 1), MACHINE)
    assert wanted.shared
    assert wanted.cores == {"a": (1,), "b": (0,), "c": (1,), "d": (0,)}
    crowded = wanted_cores([party(name, 0) for name in "abcd"], (0, 1), MACHINE).cores
    assert sorted(core for cores in crowded.values() for core in cores) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("cores", "now", "expected"),
    [
        (8, {"a": 3, "b": 3, "c": 2}, {"a": 3, "b": 3, "c": 2}),
        (8, {"a": 2, "b": 3, "c": 3}, {"a": 2, "b": 3, "c": 3}),
        (2, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_even_shares_leave_those_with_most_the_rest(
    cores: int, now: dict[str, int], expected: dict[str, int]
) -> None:
    assert even_counts(cores, now) == expected


def test_cores_are_kept_and_come_from_the_socket_where_most_are() -> None:
    now = {"a": (0, 1, 4), "b": (5, 6, 7)}
    assert hand_out({"a": 2, "b": 4}, now, CORES, MACHINE) == {"a": (0, 1), "b": (4, 5, 6, 7)}
    assert hand_out({"a": 5, "b": 3}, now, CORES, MACHINE) == {"a": (0, 1, 2, 3, 4), "b": (5, 6, 7)}
    assert hand_out({"a": 2, "b": 1}, {"a": (0, 1), "b": (0,)}, CORES, MACHINE)["a"] == (0, 1)
    assert share_out({"a": 1, "b": 1}, {"a": (3,), "b": (3,)}, (3,)) == {"a": (3,), "b": (3,)}
