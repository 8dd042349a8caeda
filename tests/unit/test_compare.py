"""The statistics behind every figure that is quoted."""

import io
import json

import numpy as np
import pytest
from benchmarks.compare import Comparison, alternate, median_interval, write_json


def test_runs_alternate_and_the_first_pair_is_thrown_away() -> None:
    calls: list[str] = []
    done: list[int] = []

    def side(name: str, value: float) -> float:
        calls.append(name)
        return value

    comparison = alternate(
        lambda: side("a", 2.0), lambda: side("b", 3.0), 3, progress=done.append, name="x", unit="ms"
    )
    assert calls == ["a", "b"] * 4
    assert done == [1, 2, 3]
    assert comparison.ratio == comparison.low == comparison.high == 1.5
    assert str(comparison).startswith("x: A 2 ms, B 3 ms, B/A 1.500 [1.500, 1.500]")


def test_ten_alternations_give_the_second_and_ninth_ratio() -> None:
    low, high, confidence = median_interval([float(i) for i in range(1, 11)])
    assert (low, high) == (2.0, 9.0)
    assert confidence == pytest.approx(0.9785, abs=1e-4)


def test_too_few_values_do_not_claim_the_confidence() -> None:
    low, high, confidence = median_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (low, high) == (1.0, 5.0)
    assert confidence == pytest.approx(0.9375)
    assert not Comparison.of("x", [1.0] * 5, [2.0] * 5).is_conclusive
    assert Comparison.of("x", [1.0] * 6, [2.0] * 6).is_conclusive


@pytest.mark.parametrize("n", [10, 15, 30])
def test_the_interval_holds_the_median_as_often_as_it_says(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = np.sort(rng.lognormal(0.3, 0.8, (4000, n)), axis=1)
    true_median = float(np.exp(0.3))
    inside = 0
    for row in draws:
        low, high, confidence = median_interval(row.tolist())
        inside += low <= true_median <= high
    assert confidence >= 0.95
    assert inside / 4000 == pytest.approx(confidence, abs=0.012)


def test_a_slow_spell_that_meets_both_sides_does_not_move_the_ratio() -> None:
    spell = np.array([1, 1, 5, 5, 5, 1, 1, 1, 1, 1.0])
    comparison = Comparison.of("x", (10 * spell).tolist(), (8 * spell).tolist())
    assert comparison.ratio == pytest.approx(0.8)
    assert comparison.is_conclusive


def test_equal_sides_are_not_told_apart() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.lognormal(0, 0.2, 12), rng.lognormal(0, 0.2, 12)
    assert not Comparison.of("x", a.tolist(), b.tolist()).is_conclusive


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_figures_that_cannot_be_compared(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs of positive figures"):
        Comparison.of("x", a, b)


def test_json() -> None:
    file = io.StringIO()
    write_json([Comparison.of("x", [1.0] * 10, [2.0] * 10, unit="ms")], file)
    (document,) = json.loads(file.getvalue())
    assert document["ratio"] == 2.0
    assert document["unit"] == "ms"
    assert len(document["a"]) == 10
