"""What a plan takes, from what its workers tell."""

from partita.profiling.crew import span_ms
from partita.wire.messages import BatchDone


def done(begun_ns: int, total_ns: int) -> BatchDone:
    return BatchDone(1, (), begun_ns, total_ns, 0)


def test_a_plan_takes_from_the_first_begin_to_the_last_end() -> None:
    assert span_ms([done(5_000_000, 2_000_000)]) == 2.0
    assert span_ms([done(5_000_000, 9_000_000), done(6_000_000, 1_000_000)]) == 9.0
    assert span_ms([done(7_000_000, 3_000_000), done(5_000_000, 4_000_000)]) == 5.0, "that began later"
