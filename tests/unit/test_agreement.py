"""Whether a candidate's outputs agree with the reference's."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from partita.core.choice import Allowance, Verdict
from partita.core.tensors import DataType, TensorSpec
from partita.planning.agreement import Judgement, Outputs, judge, tells_items_apart, tolerance_of

FLOATS = TensorSpec("y", DataType.FP32, (3,))


def floats(*rows: list[float]) -> list[Outputs]:
    return [{"y": np.array(rows, np.float32)}]


def judged(reference: list[Outputs], other: list[Outputs], **how: Any) -> Judgement:
    return judge((FLOATS,), reference, other, **how)


REFERENCE = floats([100.0, 0.001, -50.0], [1.0, 2.0, 3.0])


def test_rounding_agrees_and_the_largest_deviation_is_told() -> None:
    found = judged(REFERENCE, floats([100.05, 0.002, -50.0], [1.0, 2.0, 3.0]))
    assert found.verdict is Verdict.ADMITTED
    (deviation,) = found.deviations
    assert deviation.absolute == pytest.approx(0.05, rel=1e-3)
    assert deviation.relative == pytest.approx(0.0005, rel=1e-3)
    assert deviation.top1 == 1.0


def test_a_deviation_counts_against_its_own_item() -> None:
    found = judged(REFERENCE, floats([100.0, 0.001, -50.0], [1.05, 2.0, 3.0]))
    assert found.verdict is Verdict.REFUSED
    assert (
        "output y is off by 0.05, which is 0.017 of the item's largest value; allowed is 0.001"
        in found.reason
    )


def test_the_user_may_set_the_tolerance_and_allow_lower_precision_more() -> None:
    other = floats([100.0, 0.001, -50.0], [1.05, 2.0, 3.0])
    assert judged(REFERENCE, other, relative=0.02).verdict is Verdict.ADMITTED
    assert judged(REFERENCE, other, allowed=Allowance(deviation=0.02)).verdict is Verdict.ADMITTED
    assert judged(REFERENCE, other, allowed=Allowance(deviation=0.01)).verdict is Verdict.REFUSED


def test_another_largest_value_is_seen() -> None:
    other = floats([100.0, 0.001, -50.0], [1.0, 3.0, 2.0])
    found = judged(REFERENCE, other, allowed=Allowance(deviation=0.5))
    assert found.deviations[0].top1 == 0.5
    assert found.verdict is Verdict.ADMITTED
    assert judged(REFERENCE, other, allowed=Allowance(top1=0.5)).verdict is Verdict.ADMITTED
    refused = judged(REFERENCE, other, allowed=Allowance(deviation=0.5, top1=0.6))
    assert refused.verdict is Verdict.REFUSED
    assert "its largest value in the same place in 50.0% of the items; wanted is 60.0%" in refused.reason
    assert judged(REFERENCE, other, allowed=Allowance(deviation=0.3, top1=0.5)).verdict is Verdict.REFUSED


def test_an_output_without_places_has_to_be_near() -> None:
    one = TensorSpec("y", DataType.FP32, (1,))
    was, now = floats([1.0], [2.0]), floats([1.0], [2.1])
    refused = judge((one,), was, now, allowed=Allowance(top1=0.9))
    assert refused.verdict is Verdict.REFUSED
    assert "has no largest value among several; say how far it may be off" in refused.reason
    assert judge((one,), was, now, allowed=Allowance(deviation=0.1, top1=0.9)).verdict is Verdict.ADMITTED


@pytest.mark.parametrize("allowed", [Allowance(deviation=0.99), Allowance(top1=0.01)], ids=str)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_however_much_is_allowed(wrong: float, allowed: Allowance) -> None:
    found = judged(REFERENCE, floats([wrong, 0.001, -50.0], [1.0, 2.0, 3.0]), allowed=allowed)
    assert found.verdict is Verdict.REFUSED
    assert "not a finite number" in found.reason


def test_the_references_own_nan_and_infinity_are_to_be_met() -> None:
    odd = floats([np.nan, np.inf, 1.0])
    assert judged(odd, floats([np.nan, np.inf, 1.0])).verdict is Verdict.ADMITTED
    assert judged(odd, floats([np.nan, -np.inf, 1.0])).verdict is Verdict.REFUSED
    assert judged(odd, floats([0.0, np.inf, 1.0])).verdict is Verdict.REFUSED


def test_other_names_and_shapes_are_refused() -> None:
    named = judged(REFERENCE, [{"z": REFERENCE[0]["y"]}])
    assert "its outputs are z, the reference's y" in named.reason
    shaped = judged(REFERENCE, [{"y": REFERENCE[0]["y"][:, :2]}])
    assert "output y has shape [2, 2], the reference's [2, 3]" in shaped.reason


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        (DataType.INT64, np.array([[1, 2], [3, 4]])),
        (DataType.BOOL, np.array([[True, False], [False, False]])),
        (DataType.BYTES, np.array([[b"a", b"b"], [b"c", b""]], object)),
    ],
)
def test_whole_numbers_booleans_and_texts_must_be_equal(datatype: DataType, array: NDArray[Any]) -> None:
    spec = TensorSpec("y", datatype, (2,))
    other = array.copy()
    other[0, 0] = other[1, 1]
    assert judge((spec,), [{"y": array}], [{"y": array}]).verdict is Verdict.ADMITTED
    found = judge((spec,), [{"y": array}], [{"y": other}])
    assert found.verdict is Verdict.REFUSED
    assert found.deviations[0].relative == 0.5
    assert tells_items_apart((spec,), [{"y": array}])


def test_bf16_is_compared_by_value() -> None:
    spec = TensorSpec("y", DataType.BF16, (2,))
    exact = np.array([[1.0, 2.0]], np.float32)
    bits = (exact.view(np.uint32) >> 16).astype(np.uint16)
    near = bits + 1  # one unit in the last of 8 bits
    assert judge((spec,), [{"y": bits}], [{"y": near}]).verdict is Verdict.ADMITTED
    assert judge((spec,), [{"y": bits}], [{"y": bits + 40}]).verdict is Verdict.REFUSED


def test_items_that_are_answered_alike_prove_nothing() -> None:
    assert tells_items_apart((FLOATS,), REFERENCE)
    assert not tells_items_apart((FLOATS,), floats([1.0, 2.0, 3.0], [1.0, 2.0, 3.0 + 1e-6], [1.0, 2.0, 3.0]))
    assert not tells_items_apart((FLOATS,), floats([1.0, 2.0, 3.0]))
    label = TensorSpec("y", DataType.INT64, ())
    assert not tells_items_apart((label,), [{"y": np.zeros(8, np.int64)}])
    assert tells_items_apart(
        (FLOATS, TensorSpec("n", DataType.INT64, ())), [{"y": np.ones((4, 3), np.float32), "n": np.arange(4)}]
    )


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(0, 0.01),
)
def test_outputs_agree_exactly_if_nothing_is_off_by_more_than_the_tolerance(
    rows: list[list[float]], share: float
) -> None:
    tolerance = tolerance_of(DataType.FP32)
    assert tolerance is not None
    reference = np.array(rows, np.float64)
    scale = np.abs(reference).max(axis=1, keepdims=True)
    other = reference.copy()
    other[:, :1] += share * scale
    spec = TensorSpec("y", DataType.FP32, (3,))
    found = judge((spec,), [{"y": reference}], [{"y": other}])
    off = np.abs(other - reference).max(axis=1)
    assert (found.verdict is Verdict.ADMITTED) == bool(
        (off <= tolerance.absolute + tolerance.relative * scale[:, 0]).all()
    )
