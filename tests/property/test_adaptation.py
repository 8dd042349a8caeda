"""Whatever the load does: between two switches is the dwell, one at a time, and replays agree."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.planning.decisions import Action
from partita.planning.estimator import BatchSizeEstimator, EstimatorRules
from partita.planning.switching import SwitchRules
from tests.adaptation import Drive, controller

PHASES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 7.9, 8.1, 63.0, 65.0, 500.0]),
        st.integers(1, 40),
        st.sampled_from([0, 1, 60]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(
    phases=PHASES,
    dwell=st.integers(1, 10),
    takes_s=st.sampled_from([0.0, 0.7, 12.0]),
    fails=st.booleans(),
    stands=st.booleans(),
)
def test_between_two_switches_is_at_least_the_dwell(
    phases: list[tuple[float, int, int]], dwell: int, takes_s: float, fails: bool, stands: bool
) -> None:
    rules = SwitchRules(disturbance=0.0, gain=0.0, dwell_intervals=dwell, first_backoff_s=0.0)
    drive = Drive(controller(rules=rules), takes_s=takes_s, fails=fails)
    for depth, samples, arrived in phases:
        drive.show([depth] * samples, arrived=arrived, standing=int(depth) if stands else 0)
    least_s = dwell * drive.controller.estimator_rules.interval_s
    assert all(b.now_s - a.now_s >= least_s - 1e-6 for a, b in pairwise(drive.switches))
    assert all(d.target is not None for d in drive.decisions if d.action is not Action.STAY)
    one = drive.controller
    assert one.switches == len(drive.switches)
    if one.switching is None and not fails and drive.switches:
        assert one.failures == 0


@settings(max_examples=30, deadline=None)
@given(phases=PHASES)
def test_the_same_load_gives_the_same_decisions(phases: list[tuple[float, int, int]]) -> None:
    drives = [Drive(controller(), takes_s=1.0) for _ in range(2)]
    for drive in drives:
        for depth, samples, arrived in phases:
            drive.show([depth] * samples, arrived=arrived)
    assert drives[0].decisions == drives[1].decisions


@settings(max_examples=200)
@given(
    depths=st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=60),
    alpha=st.floats(0.01, 1.0),
    window=st.integers(1, 20),
    max_batch=st.integers(1, 1000),
)
def test_a_batch_is_a_power_of_two_no_larger_than_the_largest_depth(
    depths: list[float], alpha: float, window: int, max_batch: int
) -> None:
    rules = EstimatorRules(alpha=alpha, window=window, max_batch=max_batch)
    one = BatchSizeEstimator(rules, batch=1, now_s=0.0)
    for depth in depths:
        one.observe(depth)
        assert 1 <= one.batch <= max_batch
        assert one.batch & (one.batch - 1) == 0 or one.batch == max_batch
        assert one.batch <= max(1.0, max(depths) / (1.0 - rules.tolerance))
