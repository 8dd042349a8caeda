"""Measures a model beside its traffic: a process of its own, so that the head's loop never waits for it.

``python -m partita.profiling.beside --channel FD``: started by the head, not by hand. It asks the head for
every turn on the cores (`profiling/turns.py`), keeps what it has after every point, and dies with the head.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from partita.core.errors import ConnectionClosed, InvalidInput, PartitaError
from partita.core.profile import Profile
from partita.profiling.runner import Listener, ProfileSettings, Progress, profile_model
from partita.profiling.store import SaveFailed, encode, load, save
from partita.profiling.turns import AskedTurns
from partita.system.channels import Channel
from partita.system.clock import SystemClock
from partita.system.processes import die_with_parent, step_back
from partita.wire import tuning as wire

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
    parser = argparse.ArgumentParser(prog="partita.profiling.beside", description="The head starts it.")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the channel to the head")
    fd = parser.parse_args(argv).channel
    os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=fd))
    die_with_parent(channel.peer_pid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    step_back()
    try:
        message = wire.decode_to_measuring(channel.receive()[0])
        assert isinstance(message, wire.Measure), message
        _measure(decode_assignment(message.assignment), channel)
    except ConnectionClosed:
        return 1
    return 0


def _measure(assignment: Assignment, channel: Channel) -> None:
    turns = AskedTurns(channel, SystemClock())
    settings = assignment.settings
    launch = replace(settings.launch, load_limit_s=PATIENCE * settings.launch.load_limit_s)
    patient = replace(settings, launch=launch, execution_limit_s=PATIENCE * settings.execution_limit_s)
    try:
        profile = profile_model(
            patient,
            clock=turns,
            resume=_known(assignment.kept),
            listener=_listener(assignment.kept, channel),
            turns=turns,
        )
    except ConnectionClosed:
        raise
    except PartitaError as error:
        channel.send(wire.encode(wire.Failed(str(error))))
    else:
        channel.send(wire.encode(wire.Finished(encode(profile))))


def _known(kept: Path) -> Profile | None:
    """Return what is kept and can be gone on with: a user's own items are not known here."""
    try:
        profile = load(kept) if kept.exists() else None
    except InvalidInput:
        return None
    has_own_items = profile is not None and profile.provenance is not None and profile.provenance.samples_hash
    return None if has_own_items else profile


def _listener(kept: Path, channel: Channel) -> Listener:
    def tell(message: wire.TuningMessage) -> None:
        channel.send(wire.encode(message))

    def progress(now: Progress) -> None:
        tell(wire.Measured(points=now.points, elapsed_s=now.elapsed_s, left_s=now.left_s))

    def keep(profile: Profile) -> None:
        try:
            save(kept, profile)
        except SaveFailed as error:  # measuring is of use to this server still
            tell(wire.Note(str(error)))

    return Listener(progress=progress, note=lambda text: tell(wire.Note(text)), save=keep)


if __name__ == "__main__":
    sys.exit(main())
