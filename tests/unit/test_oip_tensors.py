"""Tensor data on the wire: JSON lists to bytes and back, and the elements of BYTES data."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import InvalidRequest
from partita.core.tensors import DataType
from partita.protocols.oip.tensors import element_ends, elements, flat, pack_json, unpack_json

INTEGERS = [t for t in DataType if t.numpy.kind in "iu" and t is not DataType.BF16]


def packed(*raws: bytes) -> bytes:
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in raws)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_up_to_their_limits_and_no_further(datatype: DataType) -> None:
    info = np.iinfo(datatype.numpy)
    values = [int(info.min), 0, 1, int(info.max)]
    data = pack_json("x", datatype, (4,), values)
    assert data == np.array(values, datatype.numpy).tobytes()
    assert unpack_json("x", datatype, (4,), data) == values
    for beyond in (int(info.min) - 1, int(info.max) + 1, 10**400):
        with pytest.raises(InvalidRequest, match=rf"'x': {datatype} holds {info.min} to {info.max}"):
            pack_json("x", datatype, (2,), [0, beyond])


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.FP64])
def test_floats(datatype: DataType) -> None:
    data = pack_json("x", datatype, (4,), [0.5, -1, 3, 1e30])
    assert data == np.array([0.5, -1, 3, 1e30], datatype.numpy).tobytes()
    assert unpack_json("x", datatype, (4,), data)[:3] == [0.5, -1, 3]
    with pytest.raises(InvalidRequest, match=f"'x': a value is out of the range of {datatype}"):
        pack_json("x", datatype, (1,), [10**400])


def test_a_number_that_only_fp64_holds() -> None:
    assert unpack_json("x", DataType.FP64, (1,), pack_json("x", DataType.FP64, (1,), [1e300])) == [1e300]
    with pytest.raises(InvalidRequest, match="out of the range of FP32"):
        pack_json("x", DataType.FP32, (1,), [1e300])


def test_booleans() -> None:
    data = pack_json("x", DataType.BOOL, (3,), [True, False, True])
    assert data == b"\1\0\1"
    assert unpack_json("x", DataType.BOOL, (3,), data) == [True, False, True]


def test_strings() -> None:
    texts = ["", "a", "é\0", "x" * 300]
    data = pack_json("x", DataType.BYTES, (2, 2), texts)
    assert data == packed(*(text.encode() for text in texts))
    assert unpack_json("x", DataType.BYTES, (2, 2), data) == texts


def test_bytes_that_are_no_text_are_replaced_in_json() -> None:
    assert unpack_json("y", DataType.BYTES, (1,), packed(b"\xff")) == ["\ufffd"]


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_floats_have_no_json_form(datatype: DataType) -> None:
    with pytest.raises(InvalidRequest, match=f"'x': {datatype} has no JSON form"):
        pack_json("x", datatype, (1,), [1.0])
    with pytest.raises(InvalidRequest, match=f"'y': {datatype} has no JSON form"):
        unpack_json("y", datatype, (1,), b"\0\0")


@pytest.mark.parametrize(
    ("datatype", "value", "said"),
    [
        (DataType.BOOL, 1, "BOOL wants values of type bool, not int"),
        (DataType.INT32, True, "INT32 wants values of type int, not bool"),
        (DataType.INT32, 1.0, "INT32 wants values of type int, not float"),
        (DataType.FP32, True, "FP32 wants values of type int or float, not bool"),
        (DataType.FP32, "1", "not str"),
        (DataType.FP32, None, "not NoneType"),
        (DataType.FP32, {}, "not dict"),
        (DataType.BYTES, 1, "BYTES wants strings, not int"),
        (DataType.BYTES, None, "BYTES wants strings, not NoneType"),
    ],
)
def test_a_wrong_kind_of_value(datatype: DataType, value: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'x': {said}|{said}"):
        pack_json("x", datatype, (1,), [value])


@pytest.mark.parametrize(
    ("data", "count"), [([1, 2], 2), ([[1], [2]], 2), ([[[1, 2]], [[3, 4]]], 4), ([], 0), ([[], []], 0)]
)
def test_nested_lists_are_flat_in_row_major_order(data: list[Any], count: int) -> None:
    assert flat(data) == list(range(1, count + 1))


@pytest.mark.parametrize("data", [[[1], 2], [1, [2]], [[1], [[2]]], [[[1]], [2]]])
def test_lists_and_values_do_not_mix(data: list[Any]) -> None:
    with pytest.raises(InvalidRequest):
        pack_json("x", DataType.INT32, (2,), data)


@pytest.mark.parametrize("data", [[], [1], [1, 2, 3], [[1, 2], [3, 4]]])
def test_a_wrong_number_of_values(data: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"'x': data has \d values, its shape \[2, 1\] 2"):
        pack_json("x", DataType.INT32, (2, 1), data)


@pytest.mark.parametrize("datatype", [t for t in DataType if t not in (DataType.FP16, DataType.BF16)])
def test_nothing_at_all(datatype: DataType) -> None:
    assert pack_json("x", datatype, (2, 0), []) == b""
    assert unpack_json("x", datatype, (2, 0), b"") == []


# --- BYTES ----------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_elements_come_back(raws: list[bytes]) -> None:
    data = packed(*raws)
    ends = element_ends("x", data, len(raws))
    assert ends == [len(packed(*raws[: k + 1])) for k in range(len(raws))]
    assert list(elements(memoryview(data), len(raws))) == raws


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=4), st.integers(1, 10))
def test_bytes_data_that_ends_inside_an_element(raws: list[bytes], cut: int) -> None:
    data = packed(*raws)
    with pytest.raises(InvalidRequest, match="'x': its BYTES data ends inside an element"):
        element_ends("x", data[: max(0, len(data) - cut)], len(raws))


def test_bytes_data_beyond_its_elements() -> None:
    with pytest.raises(InvalidRequest, match="'x': its BYTES data has 5 bytes beyond its 1 elements"):
        element_ends("x", packed(b"ab", b"c"), 1)


def test_a_count_without_end_is_refused_at_its_first_missing_element() -> None:
    with pytest.raises(InvalidRequest, match="ends inside"):
        element_ends("x", packed(b"ab"), 1 << 60)
