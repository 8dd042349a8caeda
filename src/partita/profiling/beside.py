"""Measures a model beside its traffic: a process of its own, so that the head's loop never waits for it.

``python -m partita.profiling --channel FD``: started by the head, not by hand. It asks the head for
every turn on the cores (`profiling/turns.py`), keeps what it has after every point, and dies with the head.
"""

import argparse
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from partita.core.errors import ConnectionClosed, InvalidInput, PartitaError
from partita.core.profile import Profile
from partita.profiling.identity import model_hash
from partita.profiling.runner import Listener, ProfileSettings, Progress, profile_model
from partita.profiling.store import SaveFailed, encode, load, save
from partita.profiling.turns import AskedTurns
from partita.system.channels import Channel
from partita.system.clock import SystemClock
from partita.system.parent import die_with_parent
from partita.system.processes import step_back
from partita.system.shared_memory import SharedMemory
from partita.wire import tuning as wire
from partita.wire.archive_call import unpack_calls

PATIENCE = 20.0
"""A worker that is stopped most of the time is given so many times as long before it counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What to measure, and where what is known of it is kept."""

    settings: ProfileSettings
    kept: Path


def encode_assignment(assignment: Assignment) -> bytes:
    """Return an assignment as bytes for another process."""
    return msgspec.msgpack.encode(assignment, enc_hook=_plain)


def decode_assignment(content: bytes) -> Assignment:
    """Return the assignment that was encoded."""
    return msgspec.msgpack.decode(content, type=Assignment, dec_hook=_made)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _made(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the head says, in the turns that it grants; returns the exit code."""
    parser = argparse.ArgumentParser(prog="partita.profiling", description="The head starts it.")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the channel to the head")
    fd = parser.parse_args(argv).channel
    os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=fd))
    die_with_parent(channel.peer_pid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    step_back()
    try:
        frame, descriptors = channel.receive()
        message = wire.decode_to_measuring(frame)
        assert isinstance(message, wire.Measure), message
        calls = _calls(descriptors, message.calls_bytes)
        _measure(decode_assignment(message.assignment), channel, calls)
    except ConnectionClosed:
        return 1
    return 0


def _calls(descriptors: Sequence[int], nbytes: int) -> list[bytes]:
    """Return the calls that came along, to measure an archive with."""
    if not nbytes:
        return []
    memory = SharedMemory.attach(descriptors[0], nbytes, writable=False)
    try:
        return unpack_calls(memory.view)
    finally:
        memory.close()


def _measure(assignment: Assignment, channel: Channel, calls: Sequence[bytes]) -> None:
    turns = AskedTurns(channel, SystemClock())
    settings = assignment.settings
    launch = replace(settings.launch, load_limit_s=PATIENCE * settings.launch.load_limit_s)
    patient = replace(settings, launch=launch, execution_limit_s=PATIENCE * settings.execution_limit_s)
    try:
        profile = profile_model(
            patient,
            clock=turns,
            resume=_known(assignment.kept, settings.samples),
            listener=_listener(assignment.kept, channel),
            turns=turns,
            calls=calls,
        )
    except ConnectionClosed:
        raise
    except PartitaError as error:
        channel.send(wire.encode(wire.Failed(str(error))))
    else:
        channel.send(wire.encode(wire.Finished(encode(profile))))


def _known(kept: Path, samples: Path | None) -> Profile | None:
    """Return what is kept and can be gone on with: that was measured with the same items."""
    try:
        profile = load(kept) if kept.exists() else None
        items = "" if samples is None else model_hash(samples)
    except InvalidInput:
        return None
    if profile is None or profile.provenance is None:
        return profile
    return profile if profile.provenance.samples_hash == items else None


def _listener(kept: Path, channel: Channel) -> Listener:
    def tell(message: wire.TuningMessage) -> None:
        channel.send(wire.encode(message))

    news = b""
    """The profile, until it was told."""

    def progress(now: Progress) -> None:
        nonlocal news
        profile, news = news, b""
        tell(wire.Measured(points=now.points, elapsed_s=now.elapsed_s, left_s=now.left_s, profile=profile))

    def keep(profile: Profile) -> None:
        nonlocal news
        news = encode(profile)
        try:
            save(kept, profile)
        except SaveFailed as error:  # measuring is of use to this server still
            tell(wire.Note(str(error)))

    return Listener(progress=progress, note=lambda text: tell(wire.Note(text)), save=keep)
