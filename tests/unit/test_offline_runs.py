"""How many segments an offline run hands in at once: simulated with models that answer at a steady pace."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.offline_runs import LONGEST_RUN, RUN_BYTES, RUN_S, RUNS_AHEAD, Runs, most_in_flight


def simulate(runs: Runs, segments: int, segment_s: float) -> list[tuple[int, int]]:
    """Hand all in to a model that takes `segment_s` for each; returns (length, in flight with it) of each."""
    waiting: deque[int] = deque()
    handed: list[tuple[int, int]] = []
    left, now_s = segments, 0.0
    while left or waiting:
        while left and (count := runs.next(left)):
            waiting.append(count)
            runs.handed_in(count)
            handed.append((count, sum(waiting)))
            left -= count
        assert waiting, "whoever has nothing in flight hands something in"
        count = waiting.popleft()
        now_s += count * segment_s
        runs.answered(count, now_s)
    return handed


@given(
    ahead=st.integers(1, 16),
    more=st.integers(0, 100),
    segments=st.integers(1, 400),
    segment_s=st.sampled_from([1e-9, 1e-4, 1e-3, 3e-3, 0.1]),
    alone=st.booleans(),
)
def test_everything_is_handed_in_once_and_within_the_bounds(
    ahead: int, more: int, segments: int, segment_s: float, alone: bool
) -> None:
    most = ahead + more
    handed = simulate(Runs(ahead=ahead, most=most, alone=alone), segments, segment_s)
    assert sum(count for count, _ in handed) == segments
    assert max(in_flight for _, in_flight in handed) <= most
    for count, in_flight in handed:
        assert 1 <= count <= LONGEST_RUN
        assert count == 1 or count * segment_s <= RUN_S * 1.000001
        assert in_flight <= max(ahead, RUNS_AHEAD * LONGEST_RUN)
    if alone:
        assert {count for count, _ in handed} == {1}


def test_a_swift_model_gets_long_runs_and_a_slow_one_single_segments() -> None:
    swift = [count for count, _ in simulate(Runs(ahead=4, most=64), 1000, 1e-4)]
    assert max(swift) == LONGEST_RUN
    assert swift[:5] == [1, 1, 1, 1, 1], "nothing is known of it yet"
    assert len(swift) < 1000 / LONGEST_RUN + 30
    assert {count for count, _ in simulate(Runs(ahead=4, most=64), 100, RUN_S)} == {1}


def test_to_the_end_there_is_something_for_everybody() -> None:
    assert [count for count, _ in simulate(Runs(ahead=3, most=64), 200, 1e-4)][-3:] == [1, 1, 1]


@pytest.mark.parametrize("ahead", [1, 16])
def test_one_by_one_is_for_good(ahead: int) -> None:
    runs = Runs(ahead=ahead, most=64)
    simulate(runs, 100, 1e-4)
    runs.one_by_one()
    assert {count for count, _ in simulate(runs, 100, 1e-4)} == {1}


@pytest.mark.parametrize(
    ("segment_bytes", "in_flight"),
    [(0, 1000), (256, 1000), (RUN_BYTES // 2, 2 * RUNS_AHEAD), (RUN_BYTES + 1, 2), (RUN_BYTES * 100, 2)],
)
def test_large_segments_are_few_at_once_however_swift_they_are(segment_bytes: int, in_flight: int) -> None:
    most = most_in_flight(segment_bytes, ahead=2, most=1000)
    assert most == in_flight
    runs = Runs(ahead=2, most=most)
    assert max(flying for _, flying in simulate(runs, 200, RUN_S / 1000)) <= most
