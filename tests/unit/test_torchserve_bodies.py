"""Bodies as TorchServe takes them: fields, the tensors in them, and what is answered."""

import json
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import InvalidRequest
from partita.core.tensors import DataType, Signature, TensorSpec
from partita.protocols.torchserve.fields import fields_of
from partita.protocols.torchserve.tensors import Asked, by_input, values_of

FORM = "application/x-www-form-urlencoded; charset=utf-8"
names = st.text(st.characters(codec="ascii", exclude_characters='\r\n";'), min_size=1, max_size=8).map(
    str.strip
)


@given(parts=st.dictionaries(names.filter(bool), st.binary(max_size=60), min_size=1, max_size=4))
def test_multipart_gives_back_what_was_put_in(parts: dict[str, bytes]) -> None:
    boundary = "a boundary that no part has"
    body = b"".join(
        b'--%s\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        % (boundary.encode(), name.encode(), content)
        for name, content in parts.items()
    )
    body += f"--{boundary}--\r\n".encode()
    assert fields_of(body, f'Multipart/Form-Data; boundary="{boundary}"') == parts


@given(body=st.binary(max_size=80), boundary=st.sampled_from(["", "X", '"X"', "é"]))
def test_any_multipart_body_is_taken_or_refused(body: bytes, boundary: str) -> None:
    try:
        fields_of(body, f"multipart/form-data; boundary={boundary}")
    except InvalidRequest:
        return


@given(fields=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=20), min_size=1, max_size=4))
def test_url_encoded_gives_back_what_was_put_in(fields: dict[str, str]) -> None:
    found = fields_of(urlencode(fields).encode(), FORM)
    assert found == {name: value.encode() for name, value in fields.items()}


def test_what_is_called_a_form_and_is_none_is_a_raw_body() -> None:
    for body in (b"[1, 2]", b"\xff=\xfe", b""):
        assert fields_of(body, FORM) == {"body": body}
    with pytest.raises(InvalidRequest, match="url-encoded"):
        fields_of(b"&".join(b"a%d=1" % k for k in range(200)), FORM)


def signature(datatype: DataType, *shape: int, batched: bool = True) -> Signature:
    spec = TensorSpec("x", datatype, shape)
    return Signature(inputs=(spec,), outputs=(spec,), batched=batched)


def echoed(model: Signature, body: bytes) -> Any:
    """Return what is answered by a model whose output is its input."""
    asked = Asked(model, by_input(model, {"body": body}))
    return values_of(model, asked.buffers, asked.template.shapes, is_single=asked.is_single)


@pytest.mark.parametrize("datatype", [d for d in DataType if d.name not in ("BYTES", "FP16", "BF16")])
@pytest.mark.parametrize("value", [[1, 0], [[1, 0]], [[1, 0], [0, 1]]], ids=["item", "one row", "two rows"])
def test_numbers_in_json_and_raw(datatype: DataType, value: Any) -> None:
    model = signature(datatype, 2)
    given_values = (
        [[bool(v) for v in row] for row in value] if isinstance(value[0], list) else [bool(v) for v in value]
    )
    values = given_values if datatype is DataType.BOOL else value
    assert echoed(model, json.dumps(values).encode()) == values
    raw = np.array(value, datatype.numpy).tobytes()
    assert echoed(model, raw) == (values[0] if len(value) == 1 else values)


def test_halves_are_taken_raw_and_answered_as_numbers() -> None:
    assert echoed(signature(DataType.FP16, 2), np.array([1.5, -2], np.float16).tobytes()) == [1.5, -2.0]
    bf16 = (np.array([1.5, -2], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert echoed(signature(DataType.BF16, 2), bf16.tobytes()) == [1.5, -2.0]


def test_shapes_that_are_open_or_empty_or_have_no_batch() -> None:
    assert echoed(signature(DataType.FP32, -1, 2), b"[[1, 2], [3, 4]]") == [[1.0, 2.0], [3.0, 4.0]]
    assert echoed(signature(DataType.FP32, -1, 2), b"[[[1, 2]], [[3, 4]]]") == [[[1.0, 2.0]], [[3.0, 4.0]]]
    assert echoed(signature(DataType.INT64), b"7") == 7
    assert echoed(signature(DataType.INT64), b"[7, 8]") == [7, 8]
    assert echoed(signature(DataType.INT64, 2, batched=False), b"[7, 8]") == [7, 8]


def test_text_in_json_is_text_only_where_several_items_are_meant() -> None:
    model = signature(DataType.BYTES)
    assert echoed(model, b'["a", "b"]') == b'["a", "b"]'
    assert echoed(signature(DataType.BYTES, 1), b"abc") == b"abc"
    two = Signature(inputs=(*model.inputs, TensorSpec("y", DataType.BYTES, ())), outputs=model.outputs)
    asked = Asked(two, by_input(two, {"x": b"a", "y": b"b"}))
    assert [bytes(b) for b in asked.buffers] == [b"\x01\0\0\0a", b"\x01\0\0\0b"]


@pytest.mark.parametrize(
    "body", [b"", b"[", b"{}", b"null", b"[[1], 2]", b"[1, [2]]", b'[1, "a"]', b"[" * 5001]
)
def test_what_is_no_input_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        echoed(signature(DataType.FP32, 2), body)


@given(body=st.binary(max_size=40))
def test_any_body_is_taken_or_refused(body: bytes) -> None:
    for model in (signature(DataType.INT8, 3), signature(DataType.FP32, -1), signature(DataType.BYTES, 2)):
        try:
            echoed(model, body)
        except InvalidRequest:
            continue
