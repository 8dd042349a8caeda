"""One call of an archive's handler, and its answer, as bytes: the element of a BYTES tensor.

A call carries what HTTP said: the body's fields with their content types, and the headers. A worker takes an
element that does not begin with `MAGIC` for a body alone, and answers with a body alone.
"""

from collections.abc import Sequence

import msgspec

RUNTIME = "torchserve"
"""What executes archives."""
VERSION = "0.12.0"
"""The version of TorchServe whose interfaces they find."""
INPUT = "data"
OUTPUT = "answer"
"""The names of the one input and the one output of an archive."""
MAGIC = b"\0partita-call\1"


class Field(msgspec.Struct, frozen=True, array_like=True):
    """One field of a body."""

    name: str
    content_type: str
    value: bytes


class Call(msgspec.Struct, frozen=True, array_like=True):
    """What a handler is called with for one request."""

    request_id: str
    fields: tuple[Field, ...]
    headers: tuple[tuple[str, str], ...] = ()
    is_probe: bool = False
    """Whether it is to be answered without asking the handler."""
    takes_parts: bool = False
    """Whether parts of its answer are wanted as soon as they are there; else all of it is one."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a handler answered to one request."""

    body: bytes
    status: int = 200
    content_type: str = ""
    """Empty = the handler did not say."""
    headers: tuple[tuple[str, str], ...] = ()
    error: str = ""
    """What went wrong, where there is no body of the handler's for it."""


_encoder = msgspec.msgpack.Encoder()
_calls = msgspec.msgpack.Decoder(Call)
_answers = msgspec.msgpack.Decoder(Answer)
_lists = msgspec.msgpack.Decoder(list[bytes])
PROBE = MAGIC + _encoder.encode(Call("", (), is_probe=True))


def pack_call(call: Call) -> bytes:
    """Return a call as bytes."""
    return MAGIC + _encoder.encode(call)


def unpack_call(element: bytes) -> Call | None:
    """Return the call, None where the element is a body alone."""
    if not element.startswith(MAGIC):
        return None
    try:
        return _calls.decode(memoryview(element)[len(MAGIC) :])
    except msgspec.DecodeError:
        return None


def pack_answer(answer: Answer) -> bytes:
    """Return an answer as bytes."""
    return _encoder.encode(answer)


def unpack_answer(data: bytes | memoryview) -> Answer:
    """Return the answer; raises `msgspec.DecodeError` for what is none."""
    return _answers.decode(data)


def pack_calls(calls: Sequence[bytes]) -> bytes:
    """Return several calls, each as bytes already, as one."""
    return _encoder.encode(list(calls))


def unpack_calls(data: bytes | memoryview) -> list[bytes]:
    """Return the calls; raises `msgspec.DecodeError` for what are none."""
    return _lists.decode(data)
