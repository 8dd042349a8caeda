"""A contest in several runs."""

from pathlib import Path

import pytest
from benchmarks.pairs import Pairs


def test_runs_go_on_where_others_ended_and_throw_their_first_pair_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("benchmarks.pairs.time.monotonic", lambda: now_s)

    def side() -> float:
        nonlocal now_s
        now_s += 5.0
        return now_s

    file = tmp_path / "pairs.json"
    first = Pairs(file, 45.0).run("x", side, side, 10, unit="")
    assert first is not None
    assert (first.a, first.b) == ((15.0, 25.0, 35.0), (20.0, 30.0, 40.0)), "no time for one that ends at 50 s"
    second = Pairs(file, None).run("x", side, side, 5, unit="")
    assert second is not None
    assert second.a == (15.0, 25.0, 35.0, 55.0, 65.0)
    assert Pairs(file, 0.0).run("x", side, side, 5, unit="") == second
    assert Pairs(file, 0.0).run("y", side, side, 5, unit="") is None
