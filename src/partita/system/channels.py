"""Channels between the head and a worker: exact frames and descriptors over one Unix socket pair.

``SOCK_SEQPACKET`` keeps frame borders in the kernel, so a frame arrives whole or not at all. A frame larger
than what an unprivileged socket buffer surely takes travels as a memory file whose descriptor is sent in
its place; the receiver sees no difference.
"""

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Sequence

from partita.core.errors import ConnectionClosed

MAX_FRAME_BYTES = 1 << 20
MAX_DESCRIPTORS = 8

_INLINE_BYTES = 96 << 10
_BUFFER_BYTES = 1 << 20
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE((MAX_DESCRIPTORS + 1) * _DESCRIPTOR_BYTES)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)  # plain integers: an enum's | is slow
_DO_NOT_WAIT = int(socket.MSG_DONTWAIT)
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_CARRIED = struct.Struct("<BQ")
_CARRIED_MARK = 0xC1  # the one byte that no msgpack document begins with
_CREDENTIALS = struct.Struct("3i")

Received = tuple[bytes, list[int]]
"""A frame, and the descriptors that came with it, all close-on-exec and now the receiver's."""


def channel_pair() -> "tuple[Channel, socket.socket]":
    """Return our end as a channel and the other end as the socket that a child is to be given."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return Channel(ours), theirs


class Channel:
    """One end of a socket pair that carries frames of 1 byte to 1 MiB, in order.

    Every method but `close` raises `ConnectionClosed` once the other end is gone; frames that it sent
    before are still received. Not for use by several threads at once.
    """

    __slots__ = ("_buffer", "_sock", "_view")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._buffer = bytearray(_INLINE_BYTES + 1)
        self._view = memoryview(self._buffer)

    def fileno(self) -> int:
        """The socket's descriptor, for an event loop; −1 after `close`."""
        return self._sock.fileno()

    def peer_pid(self) -> int:
        """Process that made the socket pair, as the kernel recorded it."""
        packed = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(packed)[0])

    def send(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Send one frame with descriptors (which stay open here); blocks while the buffer is full."""
        try:
            if fds or len(frame) > _INLINE_BYTES:
                self._send_with(frame, fds)
            else:
                self._sock.send(frame)
        except OSError as error:
            raise _closed_or(error) from error

    @property
    def is_read(self) -> bool:
        """Whether the other end has taken all that was sent."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._sock, termios.TIOCOUTQ, waiting)
        return not waiting[0]

    def receive(self) -> Received:
        """Wait for the next frame."""
        received = self._receive(0)
        assert received is not None
        return received

    def receive_nowait(self) -> Received | None:
        """Return the next frame if it is there."""
        return self._receive(_DO_NOT_WAIT)

    def shutdown_receiving(self) -> None:
        """Wake a blocked `receive`: once the frames already here are taken it raises `ConnectionClosed`."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close this end; a second time does nothing."""
        self._sock.close()

    def _send_with(self, frame: bytes, fds: Sequence[int]) -> None:
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(frame)} bytes is over the {MAX_FRAME_BYTES} allowed")
        if len(fds) > MAX_DESCRIPTORS:
            raise ValueError(f"{len(fds)} descriptors are over the {MAX_DESCRIPTORS} allowed")
        if len(frame) <= _INLINE_BYTES:
            socket.send_fds(self._sock, [frame], list(fds))
            return
        carrier = os.memfd_create("partita-frame", os.MFD_CLOEXEC)
        try:
            _write_all(carrier, frame)
            mark = _CARRIED.pack(_CARRIED_MARK, len(frame))
            socket.send_fds(self._sock, [mark], [*fds, carrier])
        finally:
            os.close(carrier)

    def _receive(self, flags: int) -> Received | None:
        flags |= _CLOSE_ON_EXEC
        while True:
            try:
                size, ancillary, seen, _ = self._sock.recvmsg_into([self._buffer], _ANCILLARY_BYTES, flags)
                break
            except BlockingIOError:
                return None
            except ConnectionResetError:
                continue  # reported once, ahead of frames that the peer sent before it went
            except OSError as error:
                raise _closed_or(error) from error
        fds = _descriptors(ancillary) if ancillary else []
        if seen & _CUT_SHORT:
            _close_all(fds)
            raise ConnectionClosed("a frame was cut short: the other end does not speak this protocol")
        if not size:
            raise ConnectionClosed("the other end of the channel is closed")
        frame = bytes(self._view[:size])
        if frame[0] == _CARRIED_MARK and size == _CARRIED.size and fds:
            frame = _read_carried(frame, fds.pop())
        return frame, fds


def _closed_or(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError | ConnectionResetError):
        return ConnectionClosed("the other end of the channel is closed")
    return error


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds: array.array[int] = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    return list(fds)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_carried(mark: bytes, carrier: int) -> bytes:
    _, size = _CARRIED.unpack(mark)
    try:
        frame = os.pread(carrier, min(size, MAX_FRAME_BYTES), 0)
    finally:
        os.close(carrier)
    if len(frame) != size:
        raise ConnectionClosed("a frame was cut short: the other end does not speak this protocol")
    return frame
