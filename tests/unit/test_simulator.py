"""The simulator's parts, and runs that can be worked out by hand."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from partita.core.errors import InvalidInput
from partita.machines.dispatcher import Policy
from partita.machines.work import Batch
from partita.planning.decisions import Action, Decision
from partita.planning.estimator import EstimatorRules
from partita.simulator.agenda import Agenda
from partita.simulator.arrivals import Arrivals, Kind, Piece, generate, parse_rate, read_trace
from partita.simulator.result import SimulationResult
from partita.simulator.service_times import ServiceTimes
from partita.simulator.settings import SimulationSettings
from partita.simulator.simulation import Simulation, described
from tests.adaptation import CORES, profile

# --- arrivals -------------------------------------------------------------------------------------


def arrivals(text: str, seed: int = 0, **options: float) -> Arrivals:
    kind, pieces = parse_rate(text, duration_s=10.0)
    return generate(kind, pieces, np.random.default_rng(seed), **options)  # type: ignore[arg-type]


def test_a_rate_is_read() -> None:
    assert parse_rate("100", duration_s=7.0) == (Kind.POISSON, (Piece(100.0, 100.0, 7.0),))
    assert parse_rate("constant:20@60, 20..400@30", duration_s=7.0) == (
        Kind.CONSTANT,
        (Piece(20.0, 20.0, 60.0), Piece(20.0, 400.0, 30.0)),
    )


@pytest.mark.parametrize("text", ["", "fast", "10@", "10@0", "-3", "10..@5", "odd:10", "10@5;20@5"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        parse_rate(text, duration_s=1.0)


def test_too_many_requests_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too many"):
        arrivals("1000000@3600")


def test_constant_arrivals_are_evenly_spaced() -> None:
    made = arrivals("constant:10@2,20@2")
    assert len(made.times_s) == 60
    assert np.allclose(np.diff(made.times_s[:20]), 0.1)
    assert np.allclose(np.diff(made.times_s[21:]), 0.05)
    assert made.duration_s == 4.0


@pytest.mark.parametrize("kind", ["poisson", "constant", "bursty"])
def test_arrivals_come_at_the_rate_in_steps_and_ramps(kind: str) -> None:
    made = arrivals(f"{kind}:50@40,0@10,100..500@40", items=2)
    times = made.times_s
    assert (np.diff(times) >= 0.0).all()
    assert times.min() >= 0.0
    assert times.max() <= 90.0
    for low, high, expected in ((0, 40, 2000), (50, 70, 4000), (70, 90, 8000)):
        count = int(((times >= low) & (times < high)).sum())
        assert count == pytest.approx(expected, rel=0.2 if kind == "bursty" else 0.06)
    assert not ((times > 40.0) & (times < 50.0)).any()
    assert made.items_per_s(10.0)[0] == pytest.approx(100.0, rel=0.3)


def test_bursts_come_together() -> None:
    made = arrivals("bursty:100@100", burst=10.0)
    _, sizes = np.unique(made.times_s, return_counts=True)
    assert sizes.mean() == pytest.approx(10.0, rel=0.15)


def test_the_seed_decides() -> None:
    assert (arrivals("100", seed=1).times_s == arrivals("100", seed=1).times_s).all()
    assert len(arrivals("100", seed=1).times_s) != len(arrivals("100", seed=2).times_s)


def test_rates_by_window_count_the_rest() -> None:
    made = Arrivals(np.array([0.0, 1.0, 2.5]), np.array([1, 3, 2]), 2.5)
    assert made.items_per_s(1.0).tolist() == [1.0, 3.0, 4.0]


def test_a_trace_is_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("seconds,items\n# later ones\n0.5,3\n0.5\n\n2.25,1\n")
    made = read_trace(file)
    assert made.times_s.tolist() == [0.5, 0.5, 2.25]
    assert made.items.tolist() == [3, 1, 1]
    assert made.duration_s == 2.25


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no requests"),
        ("1\n0.5\n", "line 2"),
        ("1,0\n", "line 1"),
        ("1,x\n", "line 1"),
        ("1\nlater\n", "line 2"),
        ("1\n-1\n", "line 2"),
        ("1\nnan\n", "line 2"),
    ],
)
def test_a_trace_that_is_wrong_says_where(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_trace(file)
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere\.csv: No such file"):
        read_trace(tmp_path / "nowhere.csv")


# --- service times and the clock ------------------------------------------------------------------


def batch(items: int, executions: tuple[int, ...] = ()) -> Batch:
    return Batch(1, 1, [], items, executions, 0.0)


def test_service_times_are_the_profiles_and_straight_between() -> None:
    times = ServiceTimes(profile(), cores=CORES)
    known = profile().points
    assert times.execution_s(4, 8) == known[4, 8].mean_ms / 1000
    assert times.execution_s(4, 12) == pytest.approx((known[4, 8].mean_ms + known[4, 16].mean_ms) / 2000)
    assert times.execution_s(4, 256) == pytest.approx(2 * known[4, 128].mean_ms / 1000)
    assert times.execution_s(4, 1000) > times.execution_s(4, 999)
    parts = times.batch_s(4, batch(12, (8, 4)), 0)
    assert parts == pytest.approx((known[4, 8].mean_ms + known[4, 4].mean_ms) / 1000)
    with pytest.raises(InvalidInput, match="no point of 9 threads"):
        times.execution_s(9, 1)


def test_contention_lengthens_what_runs_beside_others() -> None:
    times = ServiceTimes(profile(), cores=8, contention=0.6)
    alone = times.batch_s(2, batch(4), 0)
    assert times.batch_s(2, batch(4), 4) == pytest.approx(1.3 * alone)
    with pytest.raises(InvalidInput, match="contention"):
        ServiceTimes(profile(), cores=8, contention=-1.0)


def test_the_agenda_is_in_order_of_time_and_then_of_writing() -> None:
    agenda = Agenda()
    seen: list[tuple[float, str]] = []
    for time_s, what in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        agenda.at(time_s, lambda now_s, name: seen.append((now_s, name)), what)
    assert agenda.next_s == 1.0
    while agenda.next_s < float("inf"):
        agenda.happen()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]


def test_a_machine_is_described() -> None:
    topology = described((2, 3))
    assert [(c.socket, c.cpu) for c in topology.cpus] == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4)]
    with pytest.raises(InvalidInput, match="sockets"):
        described((2, 0))


@pytest.mark.parametrize(
    "wrong",
    [{"cores": 0}, {"load_s": -1.0}, {"sockets": (2, 2)}, {"contention": float("nan")}, {"batch": -1}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="simulation"):
        settings(**wrong)


# --- runs -----------------------------------------------------------------------------------------


def settings(**changes: object) -> SimulationSettings:
    known: dict[str, object] = {"cores": CORES, "max_batch": 128, "batch": 1, "load_s": 1.0}
    known["estimator"] = EstimatorRules(max_batch=128)
    return SimulationSettings(**{**known, **changes})  # type: ignore[arg-type]


def given(*requests: tuple[float, int]) -> Arrivals:
    times, items = zip(*requests, strict=True)
    return Arrivals(np.array(times), np.array(items), max(times))


def served(load: Arrivals, **changes: object) -> SimulationResult:
    return Simulation(profile(), load, settings(**changes)).run()


def test_latencies_by_hand() -> None:
    """⟨1,8,1⟩ takes 12.875 ms for an item: the second request waits for the first, the last for its parts."""
    result = served(given((0.0, 1), (0.005, 1), (1.0, 3)), adapt=False)
    one_s = 0.012875
    expected = [one_s, 2 * one_s - 0.005, 3 * one_s]
    assert result.latencies_s.tolist() == pytest.approx(expected)
    assert result.end_s == pytest.approx(1.0 + 3 * one_s)


def test_aggregate_collects_until_the_timeout() -> None:
    load = given((0.0, 1), (0.01, 1), (1.0, 1), (1.01, 1), (1.02, 1), (1.03, 1))
    result = served(load, adapt=False, batch=4, policy=Policy.AGGREGATE, batch_timeout_s=0.1)
    assert str(result.plans[0][1]) == "⟨4,2,1⟩"
    one_s = 0.0185
    expected = [0.1 + one_s, 0.09 + one_s, 0.03 + one_s, 0.02 + one_s, 0.01 + one_s, one_s]
    assert result.latencies_s.tolist() == pytest.approx(expected)


def test_a_full_queue_refuses() -> None:
    result = served(given(*[(0.0, 1)] * 10), adapt=False, max_queue_items=4)
    assert (result.answered, result.refused) == (6, 4)  # one executes, one waits in the channel
    assert (result.latencies_s < 0).sum() == 4


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("text", ["10@30,250@40,10@30", "bursty:60@60", "10..300@60", "constant:100@20"])
def test_every_request_is_answered_whatever_changes(policy: Policy, text: str) -> None:
    load = arrivals(text, seed=3)
    wait_s = 0.05 if policy is Policy.AGGREGATE else 0.0
    result = served(load, policy=policy, batch_timeout_s=wait_s, contention=0.2)
    assert result.answered == len(load.times_s)
    assert (result.latencies_s > 0).all()
    assert all(b.now_s - a.now_s >= 50.0 - 1e-6 for a, b in pairwise(result.decided))


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [served(arrivals("10@20,250@30,10@20", seed=5)) for _ in range(2)]
    assert runs[0].document() == runs[1].document()
    assert (runs[0].latencies_s == runs[1].latencies_s).all()


def test_the_plan_follows_the_load_and_gains() -> None:
    load = arrivals("10@60,380@60,10@60", seed=1)
    result, fixed = served(load), served(load, adapt=False)
    assert [d.action for d in result.decided] == [Action.SWITCH] * 2
    assert len(fixed.plans) == 1
    after, before = result.mean_s(80.0, 120.0), fixed.mean_s(80.0, 120.0)
    assert after is not None
    assert before is not None
    assert before > 1.4 * after
    assert fixed.document()["switches"] == 0
    threads = {tuple(i.threads for i in plan.instances) for _, plan in result.plans}
    assert len(threads) == 2


def test_more_load_than_the_best_plan_can_do_is_said() -> None:
    result = served(arrivals("constant:100@20,600@10,100@20"))
    (found,) = result.overloads()
    assert found[:2] == (20.0, 30.0)
    assert found[2] == pytest.approx(600.0)
    assert 480.0 < result.capacity < 490.0
    assert not served(arrivals("constant:100@20")).overloads()


def test_windows_hold_the_whole_run() -> None:
    result = served(arrivals("50@100"))
    rows = result.windows(at_most=7)
    assert len(rows) == 7
    assert rows[0]["from_s"] == 0.0
    assert rows[-1]["to_s"] == 100.0
    assert all(a["to_s"] == b["from_s"] for a, b in pairwise(rows))
    assert all(row["mean_ms"] > 0 for row in rows)


def test_decisions_in_the_log_are_those_that_were_carried_out() -> None:
    result = served(arrivals("10@30,380@60,10@60", seed=2))
    targets = [str(e.target) for e in result.log if isinstance(e, Decision) and e.target is not None]
    assert [str(plan) for _, plan in result.plans[1:]] == targets
