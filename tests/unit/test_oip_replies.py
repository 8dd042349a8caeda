"""Responses: JSON, binary, both, classification, compressed, and from a remembered head."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from partita.core.errors import InvalidRequest
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.protocols.oip import replies
from partita.protocols.oip.documents import parse_infer_request
from partita.protocols.oip.replies import Replies
from partita.protocols.oip.templates import Template, make_template

SIGNATURE = Signature(
    inputs=(TensorSpec("x", DataType.FP32, (1,)),),
    outputs=(
        TensorSpec("y", DataType.FP32, (DYNAMIC,)),
        TensorSpec("n", DataType.INT64, ()),
        TensorSpec("s", DataType.BYTES, ()),
        TensorSpec("h", DataType.FP16, (2,)),
    ),
)
Y = np.array([[0.5, 2.5, -1.0], [9.0, 9.0, 8.0]], np.float32)
N = np.array([1, -7])
S = b"\2\0\0\0hi\1\0\0\0!"
H = np.zeros((2, 2), np.float16)
OUTPUTS = [Y.tobytes(), N.tobytes(), S, H.tobytes()]
SHAPES = ((2, 3), (2,), (2,), (2, 2))


def template(*outputs: dict[str, Any], **more: Any) -> Template:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [0, 0]}
    document = {"inputs": [tensor], "outputs": outputs, **more}
    return make_template(parse_infer_request(json.dumps(document).encode()), SIGNATURE)


def wanted(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


def reply(asked: Template, *, coding: str = "", shapes: Any = SHAPES, outputs: Any = OUTPUTS) -> bytes:
    return Replies("m", "3", SIGNATURE).response(asked, outputs, shapes, coding)


def split(response: bytes) -> tuple[dict[str, str], dict[str, Any], bytes]:
    """Headers, JSON and binary part of a response, its lengths checked."""
    head, body = response.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert int(headers["content-length"]) == len(body)
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    elif headers.get("content-encoding") == "deflate":
        body = zlib.decompress(body)
    length = int(headers.get("inference-header-content-length", len(body)))
    return headers, json.loads(body[:length]), body[length:]


def test_json() -> None:
    headers, document, binary = split(reply(template(wanted("y"), wanted("n"), wanted("s"), id="seven")))
    assert headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in headers
    assert document == {
        "model_name": "m",
        "model_version": "3",
        "id": "seven",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": Y.ravel().tolist()},
            {"name": "n", "datatype": "INT64", "shape": [2], "data": [1, -7]},
            {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["hi", "!"]},
        ],
    }
    assert binary == b""


def test_binary_in_the_order_asked_for() -> None:
    asked = template(
        wanted("n"), wanted("s"), wanted("h"), wanted("y"), parameters={"binary_data_output": True}
    )
    headers, document, binary = split(reply(asked))
    assert headers["content-type"] == "application/octet-stream"
    assert "id" not in document
    assert [o["name"] for o in document["outputs"]] == ["n", "s", "h", "y"]
    assert [o["parameters"]["binary_data_size"] for o in document["outputs"]] == [16, len(S), 8, 24]
    assert not any("data" in o for o in document["outputs"])
    assert binary == N.tobytes() + S + H.tobytes() + Y.tobytes()


def test_json_and_binary_in_one_response() -> None:
    headers, document, binary = split(reply(template(wanted("y"), wanted("n", binary_data=True))))
    assert headers["content-type"] == "application/octet-stream"
    assert document["outputs"][0]["data"] == Y.ravel().tolist()
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 16}
    assert binary == N.tobytes()


def test_half_floats_cannot_be_sent_as_json() -> None:
    with pytest.raises(InvalidRequest, match="'h': FP16 has no JSON form; ask for binary data"):
        reply(template(wanted("h")))


def test_an_output_of_no_bytes() -> None:
    outputs, shapes = [b"", *OUTPUTS[1:]], ((2, 0), *SHAPES[1:])
    assert split(reply(template(wanted("y")), outputs=outputs, shapes=shapes))[1]["outputs"][0]["data"] == []
    binary = template(wanted("y", binary_data=True))
    assert split(reply(binary, outputs=outputs, shapes=shapes))[2] == b""


# --- remembered heads -----------------------------------------------------------------------------


def test_a_remembered_head_gives_the_same_response() -> None:
    asked = template(wanted("n"), wanted("y"), parameters={"binary_data_output": True})
    first = reply(asked)
    assert list(asked.heads) == [SHAPES]
    assert reply(asked) == first
    other = [(Y + 1).tobytes(), N.tobytes(), S, H.tobytes()]
    again = template(wanted("n"), wanted("y"), parameters={"binary_data_output": True})
    assert reply(asked, outputs=other) == reply(again, outputs=other)


def test_every_shape_has_a_head_of_its_own_and_not_too_many_are_kept() -> None:
    asked = template(wanted("y", binary_data=True))
    for length in range(1, 3 * replies.MEMO_HEADS):
        y = np.arange(2 * length, dtype=np.float32)
        shapes = ((2, length), *SHAPES[1:])
        for _ in range(2):
            _, document, binary = split(reply(asked, outputs=[y.tobytes(), *OUTPUTS[1:]], shapes=shapes))
            assert document["outputs"][0]["shape"] == [2, length]
            assert binary == y.tobytes()
        assert len(asked.heads) <= replies.MEMO_HEADS


@pytest.mark.parametrize(
    "asked",
    [
        template(wanted("y")),
        template(wanted("y", binary_data=True), wanted("n")),
        template(wanted("s", binary_data=True)),
        template(wanted("y", binary_data=True, classification=2)),
    ],
)
def test_a_head_that_depends_on_the_data_is_not_remembered(asked: Template) -> None:
    reply(asked)
    assert asked.heads == {}


# --- compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_large_response_is_compressed_where_the_client_takes_it(coding: str) -> None:
    y = np.zeros((2, 1000), np.float32)
    outputs, shapes = [y.tobytes(), *OUTPUTS[1:]], ((2, 1000), *SHAPES[1:])
    for form in ({}, {"binary_data": True}):
        asked = template(wanted("y", **form))
        plain, packed = (reply(asked, coding=c, outputs=outputs, shapes=shapes) for c in ("", coding))
        assert len(packed) < len(plain) / 4
        assert split(packed)[0]["content-encoding"] == coding
        assert split(packed)[1:] == split(plain)[1:]
        assert reply(asked, outputs=outputs, shapes=shapes) == plain


def test_a_small_response_is_not_compressed() -> None:
    asked = template(wanted("y", binary_data=True))
    assert "content-encoding" not in split(reply(asked, coding="gzip"))[0]


# --- classification -------------------------------------------------------------------------------


def classes(array: NDArray[Any], k: int, *, batched: bool = True) -> list[list[str]]:
    """Return what the classification extension makes of one output."""
    item = array.shape[1:] if batched else array.shape
    signature = Signature(
        inputs=(TensorSpec("x", DataType.FP32, (1,)),),
        outputs=(TensorSpec("y", DataType.of(array.dtype), item),),
        batched=batched,
    )
    tensor = {"name": "x", "datatype": "FP32", "shape": [1] * (1 + batched), "data": [0]}
    document = {"inputs": [tensor], "outputs": [wanted("y", classification=k)]}
    asked = make_template(parse_infer_request(json.dumps(document).encode()), signature)
    response = Replies("m", "1", signature).response(asked, [array.tobytes()], (array.shape,))
    (output,) = split(response)[1]["outputs"]
    assert output["datatype"] == "BYTES"
    data, shape = output["data"], output["shape"]
    assert len(data) == np.prod(shape)
    rows = shape[0] if batched else 1
    return [data[row * shape[-1] : (row + 1) * shape[-1]] for row in range(rows)]


def test_the_largest_of_each_item_and_the_first_of_equals() -> None:
    assert classes(Y, 2) == [["2.500000:1", "0.500000:0"], ["9.000000:0", "9.000000:1"]]


def test_no_more_classes_than_there_are() -> None:
    assert [len(row) for row in classes(Y, 100)] == [3, 3]


@pytest.mark.parametrize("dtype", ["u1", "u8", "i1", "i8", "f2", "f8"])
def test_every_kind_of_number_in_order(dtype: str) -> None:
    info: Any = np.finfo(dtype) if dtype[0] == "f" else np.iinfo(dtype)
    array = np.array([[0, info.min, 1, info.max]], dtype)
    best = [int(text.split(":")[1]) for text in classes(array, 3)[0]]
    assert best == [3, 2, 0]


def test_what_is_no_number_comes_last() -> None:
    assert [t.split(":")[1] for t in classes(np.array([[np.nan, 1, 2]], np.float32), 3)[0]] == ["2", "1", "0"]


def test_items_of_one_number_are_items_all_the_same() -> None:
    assert classes(np.array([3, 5], np.float32), 2) == [["3.000000:0"], ["5.000000:0"]]


def test_a_model_without_a_batch_axis() -> None:
    assert classes(np.array([3, 5], np.float32), 1, batched=False) == [["5.000000:1"]]


def test_no_classes_of_strings() -> None:
    with pytest.raises(InvalidRequest, match="'s': classification is not possible for BYTES"):
        reply(template(wanted("s", classification=1)))
