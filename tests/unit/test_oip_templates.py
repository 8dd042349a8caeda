"""What a request's JSON means for a model, and the message for everything that does not fit it."""

import json
from typing import Any

import pytest

from partita.core.errors import InvalidRequest
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.protocols.oip.documents import MAX_TIMEOUT_US, parse_infer_request
from partita.protocols.oip.templates import Template, make_template

TWO = Signature(
    inputs=(TensorSpec("x", DataType.FP32, (4,)), TensorSpec("i", DataType.INT64, ())),
    outputs=(TensorSpec("y", DataType.FP32, (3,)), TensorSpec("z", DataType.INT64, ())),
)
TEXT = Signature(
    inputs=(TensorSpec("t", DataType.BYTES, (DYNAMIC,)),), outputs=(TensorSpec("y", DataType.BYTES, ()),)
)
WIDE = Signature(
    inputs=(TensorSpec("x", DataType.UINT8, (DYNAMIC, 3)),), outputs=(TensorSpec("y", DataType.FP32, ()),)
)
ALONE = Signature(
    inputs=(TensorSpec("x", DataType.FP32, (4,)),),
    outputs=(TensorSpec("y", DataType.FP32, (4,)),),
    batched=False,
)


def tensor(
    name: str, datatype: str, shape: list[Any], size: int | None = None, **more: Any
) -> dict[str, Any]:
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": name, "datatype": datatype, "shape": shape, **parameters, **more}


X, J = tensor("x", "FP32", [2, 4], 32), tensor("i", "INT64", [2], 16)


def template(signature: Signature, *inputs: dict[str, Any], **more: Any) -> Template:
    return make_template(parse_infer_request(json.dumps({"inputs": inputs, **more}).encode()), signature)


# --- what it means --------------------------------------------------------------------------------


def test_binary_data_come_in_the_order_of_the_request() -> None:
    first, second = template(TWO, X, J), template(TWO, J, X)
    assert first.spans == ((0, 32), (32, 48))
    assert second.spans == ((16, 48), (0, 16))
    for one in (first, second):
        assert (one.n_items, one.binary_bytes, one.shapes) == (2, 48, ((2, 4), (2,)))
        assert one.layout.row_bytes == (16, 8)
        assert one.layout.lane is None
        assert one.is_all_binary


def test_an_input_in_json_beside_one_in_binary() -> None:
    mixed = template(TWO, tensor("x", "FP32", [2, 4], data=[0] * 8), J)
    assert mixed.spans == (None, (0, 16))
    assert not mixed.is_all_binary


def test_items_of_equal_shapes_share_a_lane_and_others_do_not() -> None:
    def lane(length: int, items: int) -> Any:
        return template(WIDE, tensor("x", "UINT8", [items, length, 3], items * length * 3)).layout.lane

    assert lane(5, 1) == lane(5, 7)
    assert lane(5, 1) != lane(6, 1)


def test_strings_are_ragged() -> None:
    assert template(TEXT, tensor("t", "BYTES", [2, 3], 100)).layout.is_ragged


def test_a_model_without_a_batch_axis_takes_one_item() -> None:
    one = template(ALONE, tensor("x", "FP32", [4], 16))
    assert (one.n_items, one.shapes, one.layout.row_bytes) == (1, ((4,),), (16,))


def test_outputs_in_the_form_and_order_asked_for() -> None:
    def forms(**more: Any) -> list[tuple[int, bool, int]]:
        return [(w.index, w.is_binary, w.classes) for w in template(TWO, X, J, **more).outputs]

    assert forms() == [(0, False, 0), (1, False, 0)]
    assert forms(parameters={"binary_data_output": True}) == [(0, True, 0), (1, True, 0)]
    assert forms(outputs=[{"name": "z"}]) == [(1, False, 0)]
    assert forms(
        parameters={"binary_data_output": True},
        outputs=[
            {"name": "z", "parameters": {"binary_data": False}},
            {"name": "y", "parameters": {"classification": 3}},
        ],
    ) == [(1, False, 0), (0, True, 3)]


def test_id_and_timeout() -> None:
    one = template(TWO, X, J, id="seven", parameters={"timeout": 1500, "priority": 3, "own": [1]})
    assert (one.request_id, one.deadline_s) == ("seven", 0.0015)
    assert template(TWO, X, J, parameters={"timeout": 0}).deadline_s is None


def test_what_a_sequence_parameter_that_says_nothing_means() -> None:
    off = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert template(TWO, X, J, parameters=off).n_items == 2


# --- what does not fit ----------------------------------------------------------------------------

WRONG: dict[str, tuple[Signature, list[dict[str, Any]], dict[str, Any], str]] = {
    "unexpected": (TWO, [X, J, tensor("q", "FP32", [2], 8)], {}, "unexpected input 'q'; the model's"),
    "missing": (TWO, [X], {}, "input 'i' is missing; the model's inputs are x, i"),
    "nothing": (TWO, [], {}, "input 'x' is missing"),
    "twice": (TWO, [X, J, X], {}, "an input is given twice"),
    "datatype": (TWO, [tensor("x", "FP64", [2, 4], 64), J], {}, "has datatype FP64; the model wants FP32"),
    "no datatype": (TWO, [tensor("x", "float", [2, 4], 32), J], {}, "has datatype float; the model wants"),
    "rank": (TWO, [tensor("x", "FP32", [8], 32), J], {}, "has shape [8]; the model wants [-1, 4]"),
    "shape": (TWO, [tensor("x", "FP32", [2, 5], 40), J], {}, "has shape [2, 5]; the model wants [-1, 4]"),
    "negative": (TWO, [tensor("x", "FP32", [-1, 4], 32), J], {}, "has shape [-1, 4]; the model wants"),
    "negative dynamic": (WIDE, [tensor("x", "UINT8", [1, -1, 3], 3)], {}, "has shape [1, -1, 3]"),
    "no items": (TWO, [tensor("x", "FP32", [0, 4], 0), J], {}, "input 'x' has no items: its first axis is 0"),
    "counts": (TWO, [X, tensor("i", "INT64", [3], 24)], {}, "different numbers of items: [2, 3]"),
    "size": (
        TWO, [tensor("x", "FP32", [2, 4], 33), J], {},
        "binary_data_size is 33, but shape [2, 4] of FP32 has 32 bytes",
    ),
    "negative size": (TWO, [tensor("x", "FP32", [2, 4], -32), J], {}, "binary_data_size is negative"),
    "neither": (TWO, [tensor("x", "FP32", [2, 4]), J], {}, "needs either data or parameters."),
    "both": (TWO, [{**X, "data": [0] * 8}, J], {}, "needs either data or parameters."),
    "output": (TWO, [X, J], {"outputs": [{"name": "w"}]}, "unexpected output 'w'; the model's"),
    "alone, batched": (ALONE, [tensor("x", "FP32", [1, 4], 16)], {}, "has shape [1, 4]; the model wants [4]"),
    "sequence": (TWO, [X, J], {"parameters": {"sequence_id": 5}}, "sequences are not supported"),
    "sequence start": (TWO, [X, J], {"parameters": {"sequence_start": True}}, "sequences are not supported"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_request_that_does_not_fit_is_told_why(case: str) -> None:
    signature, inputs, more, said = WRONG[case]
    with pytest.raises(InvalidRequest) as caught:
        template(signature, *inputs, **more)
    assert said in str(caught.value)


DOCUMENTS = {
    b"": "truncated",
    b"{": "truncated",
    b"[]": "Expected `object`",
    b"null": "Expected `object`",
    b"{}": "missing required field `inputs`",
    b'{"inputs": {}}': "Expected `array`",
    b'{"inputs": [1]}': "$.inputs[0]",
    b'{"inputs": [{"name": "x"}]}': "missing required field `datatype`",
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1.5]}]}': "$.inputs[0].shape[0]",
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": "1"}]}': "$.inputs[0].shape",
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": 5}]}': "$.inputs[0].data",
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1e999]}]}': "out of range",
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [NaN]}]}': "malformed",
    b'{"inputs": [], "parameters": {"timeout": -1}}': "$.parameters.timeout",
    b'{"inputs": [], "parameters": {"timeout": %d}}' % (MAX_TIMEOUT_US + 1): "$.parameters.timeout",
    b'{"inputs": [], "parameters": {"timeout": 1%b}}' % (b"0" * 400): "$.parameters.timeout",
    b'{"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": -1}}]}': "classification",
    b'{"inputs": []} and more': "trailing characters",
    b'{"inputs": [{"name": "\xff"}]}': "Invalid UTF-8",
    b'{"inputs": [{"name": "\\ud800 and more"}]}': "surrogate",
    b'{"inputs": [], "id": %b}' % (b"[" * 100_000): "Expected `str`",
    b'{"inputs": [], "own": %b%b}' % (b"[" * 100_000, b"]" * 100_000): "nested too deep",
    b'{"inputs": [{"name": "x", "datatype": "A", "shape": [], "data": %b' % (b"[" * 10**5): "too deep",
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_json_that_is_no_inference_request(number: int) -> None:
    text, said = list(DOCUMENTS.items())[number]
    with pytest.raises(InvalidRequest) as caught:
        parse_infer_request(text)
    assert said in str(caught.value)
