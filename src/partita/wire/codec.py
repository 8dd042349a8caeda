"""Messages to bytes and back, exactly: a frame is one message, with nothing before or after it."""

import msgspec

from partita.core.errors import PartitaError
from partita.wire.messages import HeadToHost, HeadToWorker, HostToHead, Message, WorkerToHead


class MalformedMessage(PartitaError):
    """A frame is not one of the messages expected from this side."""

    code = "malformed_message"


_encoder = msgspec.msgpack.Encoder()
_from_head = msgspec.msgpack.Decoder(HeadToWorker)
_from_worker = msgspec.msgpack.Decoder(WorkerToHead)
_to_host = msgspec.msgpack.Decoder(HeadToHost)
_from_host = msgspec.msgpack.Decoder(HostToHead)


def encode(message: Message) -> bytes:
    """Return the one frame that carries this message."""
    return _encoder.encode(message)


def decode_from_head(frame: bytes) -> HeadToWorker:
    """Decode a frame that the head sent; raises `MalformedMessage`."""
    try:
        return _from_head.decode(frame)
    except msgspec.DecodeError as error:
        raise MalformedMessage(str(error)) from error


def decode_from_worker(frame: bytes) -> WorkerToHead:
    """Decode a frame that a worker sent; raises `MalformedMessage`."""
    try:
        return _from_worker.decode(frame)
    except msgspec.DecodeError as error:
        raise MalformedMessage(str(error)) from error


def decode_to_host(frame: bytes) -> HeadToHost:
    """Decode a frame that the head sent to a process of many models; raises `MalformedMessage`."""
    try:
        return _to_host.decode(frame)
    except msgspec.DecodeError as error:
        raise MalformedMessage(str(error)) from error


def decode_from_host(frame: bytes) -> HostToHead:
    """Decode a frame that a process of many models sent; raises `MalformedMessage`."""
    try:
        return _from_host.decode(frame)
    except msgspec.DecodeError as error:
        raise MalformedMessage(str(error)) from error
