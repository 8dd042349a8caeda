"""The endurance benchmark in small: nothing is lost when workers are killed, or models come and go."""

import os
from pathlib import Path

import pytest
import uvloop
from benchmarks.endurance import cycles, killed

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it kills one worker beside another"),
]


def test_a_worker_killed_every_second_costs_no_answer(tmp_path: Path) -> None:
    assert [figure for figure in uvloop.run(killed(tmp_path, quick=True)) if not figure.passed] == []


def test_models_come_and_go(tmp_path: Path) -> None:
    assert len(uvloop.run(cycles(tmp_path, quick=True))) == 2, "memory is judged over more cycles"
