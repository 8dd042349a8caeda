"""The batch-size estimator: smoothed twice, pure, and the same whenever it is replayed."""

import pytest

from partita.core.errors import InvalidInput
from partita.planning.estimator import BatchSizeEstimator, EstimatorRules
from partita.planning.load import DepthMeter


def estimator(**changes: object) -> BatchSizeEstimator:
    return BatchSizeEstimator(EstimatorRules(**changes), batch=1, now_s=0.0)  # type: ignore[arg-type]


def shown(one: BatchSizeEstimator, depths: list[float]) -> list[int]:
    batches = []
    for depth in depths:
        one.observe(depth)
        batches.append(one.batch)
    return batches


def test_depth_is_smoothed_exponentially() -> None:
    one = estimator(alpha=0.25)
    shown(one, [8.0, 16.0])
    assert one.depth == 0.25 * 16 + 0.75 * 8


@pytest.mark.parametrize(
    ("depth", "batch"), [(0, 1), (0.4, 1), (1, 1), (1.8, 1), (2, 2), (3.7, 2), (63, 64), (60, 32), (64, 64)]
)
def test_estimate_is_the_next_lower_power_of_two_within_the_tolerance(depth: float, batch: int) -> None:
    assert shown(estimator(window=1), [depth]) == [batch]


def test_without_tolerance_a_power_of_two_is_exact() -> None:
    one = estimator(window=1, alpha=1.0, tolerance=0.0)
    assert shown(one, [63.99, 64.0, 127.99, 128.0]) == [32, 64, 64, 128]


def test_batch_is_the_mode_and_never_what_is_passed_on_the_way() -> None:
    batches = shown(estimator(), [1.0] * 8 + [64.0] * 12 + [1.0] * 20)
    assert batches[19] == 64
    assert batches[-1] == 1
    assert set(batches) == {1, 64}


def test_settles_within_two_intervals_of_a_step_up_and_down() -> None:
    rules = EstimatorRules()
    one = BatchSizeEstimator(rules, batch=1, now_s=0.0)
    for depth, batch in ((1.0, 1), (64.0, 64), (1.0, 1)):
        assert shown(one, [depth] * (2 * rules.samples))[-1] == batch


def test_one_outlier_changes_nothing() -> None:
    assert set(shown(estimator(), [12.0] * 8 + [500.0] + [12.0] * 8)) == {8}


def test_what_is_as_frequent_as_what_was_before_does_not_replace_it() -> None:
    one = estimator(alpha=1.0, window=4)
    assert shown(one, [8.0, 8.0, 8.0, 32.0, 32.0, 32.0, 8.0, 8.0]) == [8, 8, 8, 8, 8, 32, 32, 32]


def test_newest_estimate_tells_a_depth_on_its_way() -> None:
    one = estimator(alpha=1.0)
    shown(one, [8.0] * 8)
    assert one.agrees
    shown(one, [64.0])
    assert not one.agrees


def test_largest_batch_is_kept() -> None:
    assert shown(estimator(max_batch=48), [5000.0] * 8)[-1] == 48


def test_comparison_is_due_after_each_interval() -> None:
    one = estimator(interval_s=0.3)
    assert not one.is_due(0.29)
    assert one.is_due(0.1 + 0.1 + 0.1)
    one.compared(0.3)
    assert not one.is_due(0.5)
    assert one.is_due(0.6)


def test_the_same_samples_give_the_same_batches() -> None:
    depths = [float((k * k) % 97) for k in range(200)]
    assert shown(estimator(), depths) == shown(estimator(), depths)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 0.0},
        {"alpha": 1.5},
        {"window": 0},
        {"interval_s": 0.0},
        {"interval_s": float("nan")},
        {"samples": 0},
        {"tolerance": 0.5},
        {"max_batch": 0},
        {"timeout_share": 0.0},
        {"long_delay": 0.0},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="batch-size estimator"):
        EstimatorRules(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [-1.0, float("nan"), float("inf")])
def test_a_depth_that_cannot_be_is_refused(depth: float) -> None:
    with pytest.raises(InvalidInput, match="depth"):
        estimator().observe(depth)


def test_meter_sees_a_burst_that_is_gone_when_one_looks() -> None:
    meter = DepthMeter()
    meter.arrived(1, 1)
    meter.arrived(64, 65)
    assert meter.take(0) == ((1 + 64 * 65) / 65, 65, (1 + 64 * 64) / 65, 0)
    assert meter.take(3) == (3.0, 0, 1.0, 3)
