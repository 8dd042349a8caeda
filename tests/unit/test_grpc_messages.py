"""The gRPC messages: as the real client has them, in nobody's way, and split where their data begin."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import InvalidRequest

service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")

from partita.protocols.grpc.messages import CLASSES  # noqa: E402
from partita.protocols.grpc.replies import varint  # noqa: E402
from partita.protocols.grpc.requests import parse, split  # noqa: E402
from partita.protocols.grpc.schema import ENUMS  # noqa: E402


def theirs(name: str) -> Any:
    """The real client's descriptor of a message or enumeration."""
    outer, *inner = name.split(".")
    for file in (service_pb2, model_config_pb2):
        found = getattr(file, outer, None)
        if found is not None:
            for part in inner:
                found = getattr(found, part)
            return found.DESCRIPTOR
    raise LookupError(name)


def looks(field: Any) -> tuple[Any, ...]:
    message, enum, oneof = field.message_type, field.enum_type, field.containing_oneof
    return (
        field.number,
        field.type,
        field.is_repeated,
        message and message.full_name,
        enum and enum.full_name,
        oneof and oneof.name,
        bool(message and message.GetOptions().map_entry),
    )


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_field_is_the_one_that_the_real_client_has(name: str) -> None:
    known = theirs(name).fields_by_name
    for field in CLASSES[name].DESCRIPTOR.fields:
        assert looks(field) == looks(known[field.name]), field.name


@pytest.mark.parametrize("name", sorted(ENUMS))
def test_every_value_is_the_one_that_the_real_client_has(name: str) -> None:
    known = {value.name: value.number for value in theirs(name).values}
    assert {value: number for number, value in enumerate(ENUMS[name])}.items() <= known.items()


OURS = "from partita.protocols.grpc.messages import CLASSES"
THEIRS = "from tritonclient.grpc import service_pb2"


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "theirs first"])
def test_the_real_client_in_the_same_process_is_not_disturbed(order: tuple[str, str]) -> None:
    use = (
        "theirs = service_pb2.ModelInferRequest(model_name='m', raw_input_contents=[b'x'])\n"
        "ours = CLASSES['ModelInferRequest'].FromString(theirs.SerializeToString())\n"
        "assert ours.model_name == 'm' and list(ours.raw_input_contents) == [b'x']\n"
    )
    code = "\n".join([*order, use])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "import asyncio, sys\n"
        "sys.modules['grpc'] = None\n"
        "from partita.head import Head\n"
        "from partita.settings import ServerSettings\n"
        "from partita.system.addresses import Address\n"
        "async def main():\n"
        "    settings = ServerSettings(http=None, metrics=None, grpc=Address('127.0.0.1', 0))\n"
        "    await Head(settings, asyncio.get_running_loop()).start([])\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "MissingExtra: gRPC needs an extra; install it with pip install 'partita[grpc]'" in done.stderr


# --- splitting ------------------------------------------------------------------------------------


def message(raws: list[bytes], **fields: Any) -> Any:
    made = CLASSES["ModelInferRequest"](model_name="m", raw_input_contents=raws, **fields)
    for index in range(len(raws)):
        made.inputs.add(name=f"x{index}", datatype="UINT8", shape=[len(raws[index])])
    return made


raw_tensors = st.lists(st.binary(max_size=200), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(raws=raw_tensors, request_id=st.text(max_size=5))
def test_split_finds_the_raw_tensors_and_leaves_the_rest(raws: list[bytes], request_id: str) -> None:
    whole = message(raws, id=request_id)
    parts = split(whole.SerializeToString())
    assert parts is not None
    assert [bytes(raw) for raw in parts[1]] == raws
    del whole.raw_input_contents[:]
    assert CLASSES["ModelInferRequest"].FromString(parts[0]) == whole


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=60))
def test_split_never_fails_and_loses_nothing(data: bytes) -> None:
    parts = split(data)
    if parts is not None:
        again = parts[0] + b"".join(b"\x3a" + varint(len(raw)) + raw for raw in parts[1])
        assert len(again) <= len(data)  # shorter only where a length was written longer than need be


@settings(max_examples=40, deadline=None)
@given(raws=raw_tensors, cut=st.integers(min_value=1, max_value=400))
def test_a_message_that_ends_early_is_refused_or_has_less(raws: list[bytes], cut: int) -> None:
    data = message(raws).SerializeToString()[:-cut]
    try:
        parsed = parse(data)
    except InvalidRequest:
        return
    assert len(parsed.data) <= len(raws)


def test_raw_tensors_before_other_fields_are_left_to_the_parser() -> None:
    other = CLASSES["ModelInferRequest"](model_name="m").SerializeToString()
    data = message([b"abc"]).SerializeToString() + other
    assert split(data) is None
    assert parse(data).data == [b"abc"]


@settings(max_examples=40, deadline=None)
@given(value=st.integers(min_value=0, max_value=1 << 40))
def test_lengths_are_written_as_protobuf_writes_them(value: int) -> None:
    written = CLASSES["StatisticDuration"](count=value).SerializeToString()
    assert written == (b"\x08" + varint(value) if value else b"")
