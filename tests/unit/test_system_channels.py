import fcntl
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import ConnectionClosed
from partita.system.channels import MAX_DESCRIPTORS, MAX_FRAME_BYTES, Channel, channel_pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


@pytest.mark.parametrize("size", [1, 2, 4096, 96 << 10, (96 << 10) + 1, 300_000, MAX_FRAME_BYTES])
def test_a_frame_of_any_size_arrives_whole(ends: tuple[Channel, Channel], size: int) -> None:
    frame = os.urandom(size)
    ends[0].send(frame)
    assert ends[1].receive() == (frame, [])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(min_size=1, max_size=500), min_size=1, max_size=20))
def test_frames_keep_their_borders_and_order(frames: list[bytes]) -> None:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    for frame in frames:
        ours.send(frame)
    assert [other.receive()[0] for _ in frames] == frames
    assert other.receive_nowait() is None
    ours.close()
    other.close()


def test_a_frame_that_is_too_large_is_refused_and_nothing_is_sent(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(ValueError, match="1048577 bytes"):
        ends[0].send(b"x" * (MAX_FRAME_BYTES + 1))
    assert ends[1].receive_nowait() is None


@pytest.mark.parametrize("size", [5, 200_000])
@pytest.mark.parametrize("count", [1, MAX_DESCRIPTORS])
def test_descriptors_come_along_and_are_close_on_exec(
    ends: tuple[Channel, Channel], size: int, count: int
) -> None:
    files = [os.memfd_create(f"test{i}") for i in range(count)]
    for index, fd in enumerate(files):
        os.write(fd, b"%d" % index)
    ends[0].send(b"f" * size, files)
    frame, received = ends[1].receive()
    assert len(frame) == size
    assert [os.pread(fd, 9, 0) for fd in received] == [b"%d" % i for i in range(count)]
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in received)
    for fd in files + received:
        os.close(fd)


def test_a_frame_that_begins_like_the_carrier_mark_is_just_a_frame(ends: tuple[Channel, Channel]) -> None:
    frame = b"\xc1" + b"\0" * 8
    ends[0].send(frame)
    assert ends[1].receive() == (frame, [])


def test_frames_sent_before_the_end_are_received_then_the_end(ends: tuple[Channel, Channel]) -> None:
    ends[1].send(b"unread by the other end")
    ends[0].send(b"last words")
    ends[0].close()
    assert ends[1].receive() == (b"last words", [])
    for receive in (ends[1].receive, ends[1].receive_nowait):
        with pytest.raises(ConnectionClosed):
            receive()
    with pytest.raises(ConnectionClosed):
        ends[1].send(b"to nobody")


def test_a_frame_beyond_the_protocol_is_an_error_not_a_piece() -> None:
    ours, theirs = channel_pair()
    theirs.send(b"x" * 150_000)
    with pytest.raises(ConnectionClosed, match="cut short"):
        ours.receive()
    ours.close()
    theirs.close()


def test_shutdown_lets_the_frames_already_here_be_taken(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(b"queued")
    ends[1].shutdown_receiving()
    assert ends[1].receive()[0] == b"queued"
    with pytest.raises(ConnectionClosed):
        ends[1].receive()


def test_the_peer_is_whoever_made_the_pair(ends: tuple[Channel, Channel]) -> None:
    assert ends[1].peer_pid() == os.getpid()


def test_close_twice_is_harmless_and_gives_no_descriptor() -> None:
    ours, theirs = channel_pair()
    ours.close()
    ours.close()
    assert ours.fileno() == -1
    assert theirs.type == socket.SOCK_SEQPACKET
    theirs.close()
