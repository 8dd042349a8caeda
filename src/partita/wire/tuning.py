"""The closed set of messages between the head and the process that measures a model beside its traffic.

The measuring process starts workers and talks with them itself; the head only says when they may execute.
One message is one frame of the channel, as in `wire/messages.py`.
"""

import msgspec

from partita.core.errors import PartitaError


class TuningMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Root of these messages: a plain map with a ``type`` tag on the wire."""


# --- head to the measuring process ----------------------------------------------------------------


class Measure(TuningMessage, frozen=True):
    """First message: what to measure, as its own module encodes it."""

    assignment: bytes
    calls_bytes: int = 0
    """Bytes of the calls to measure an archive with, in the memory that comes along; 0 = none comes."""


class Go(TuningMessage, frozen=True):
    """The worker may be asked now."""


class Spent(TuningMessage, frozen=True):
    """Answer to `Done`: how the turn went. It waited for its start, and was stopped on the way."""

    waited_s: float
    stopped_s: float
    stops: int


# --- the measuring process to the head ------------------------------------------------------------


class Want(TuningMessage, frozen=True, kw_only=True):
    """A worker is to execute once on these cores. `Go` follows, unless it is active already."""

    pid: int
    cores: tuple[int, ...]
    is_active: bool = False
    """It is loading; the head stops it while it may not."""
    expected_s: float | None = None
    spoiled: bool = False
    """The last try was stopped on the way, so that its time counts for little."""


class Done(TuningMessage, frozen=True):
    """The worker has nothing to do any more; `Spent` follows."""


class Measured(TuningMessage, frozen=True, kw_only=True):
    """How far it has come."""

    points: int
    elapsed_s: float
    left_s: float
    profile: bytes = b""
    """What is known by now, as `Finished` has it; empty where that was told before."""


class Note(TuningMessage, frozen=True):
    """Something that the user should know."""

    text: str


class Finished(TuningMessage, frozen=True):
    """The profile, as `profiling/store.py` writes it. The process ends after this."""

    profile: bytes


class Failed(TuningMessage, frozen=True):
    """There is no profile, and why. The process ends after this."""

    reason: str


ToMeasuring = Measure | Go | Spent
FromMeasuring = Want | Done | Measured | Note | Finished | Failed

_encoder = msgspec.msgpack.Encoder()
_to_measuring = msgspec.msgpack.Decoder(ToMeasuring)
_from_measuring = msgspec.msgpack.Decoder(FromMeasuring)


class MalformedTuningMessage(PartitaError):
    """A frame is not one of the messages expected from this side."""

    code = "malformed_message"


def encode(message: TuningMessage) -> bytes:
    """Return the one frame that carries this message."""
    return _encoder.encode(message)


def decode_to_measuring(frame: bytes) -> ToMeasuring:
    """Decode a frame that the head sent; raises `MalformedTuningMessage`."""
    try:
        return _to_measuring.decode(frame)
    except msgspec.DecodeError as error:
        raise MalformedTuningMessage(str(error)) from error


def decode_from_measuring(frame: bytes) -> FromMeasuring:
    """Decode a frame that the measuring process sent; raises `MalformedTuningMessage`."""
    try:
        return _from_measuring.decode(frame)
    except msgspec.DecodeError as error:
        raise MalformedTuningMessage(str(error)) from error
