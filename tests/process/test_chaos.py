"""The chaos benchmark in small: workers killed in mid-execution, every answer its own request's."""

import pytest
import uvloop
from benchmarks.chaos import Goal, chaos

pytestmark = pytest.mark.process


def test_no_answer_is_mixed_up_missing_or_stuck_when_workers_are_killed() -> None:
    goal = Goal(requests=2000, kills=5)
    outcome = uvloop.run(chaos(goal, 1, lambda _: None))
    assert outcome.faults(goal.kills) == []
    assert outcome.requests >= goal.requests
    assert outcome.worker_deaths >= goal.kills
