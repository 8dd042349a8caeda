"""Unpacking an archive whose author is not trusted with anything but the files that it holds.

Refused are entries that would lie outside (absolute names, ``..``), links and special files, names that come
twice, and archives that unpack to far more than they are (bombs).
"""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from partita.archives.containers import Container, Member, opened
from partita.core.errors import InvalidInput

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an archive may unpack to."""

    max_bytes: int = 32 << 30
    max_entries: int = 10_000
    max_ratio: float = 200.0
    """Bytes unpacked for each byte of the archive, counted once they are more than `free_bytes`."""
    free_bytes: int = 256 << 20


DEFAULT = Limits()


def unpack(path: Path, target: Path, limits: Limits = DEFAULT) -> None:
    """Unpack into an empty folder. Raises `InvalidInput` that names archive, entry and limit."""
    allowed = _Allowance(path, limits)
    with opened(path) as container:
        for member in container.members():
            inner = _inner_path(path, member)
            allowed.count(member)
            if inner is None:
                continue
            place = target / inner
            if member.kind == "folder":
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
                continue
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(path, container, member, place, allowed)
    _lift(target)


def _lift(target: Path) -> None:
    """Bring everything to the root where one folder holds it, as in archives that are tars."""
    found = list(target.iterdir())
    if len(found) == 1 and (found[0] / "MAR-INF").is_dir():
        aside = found[0].rename(target / "..lifted")
        for child in aside.iterdir():
            child.rename(target / child.name)
        aside.rmdir()


class _Allowance:
    """Counts what is unpacked; sizes that entries claim do not count, what is written does."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._packed = max(1, path.stat().st_size)
        self._entries = 0
        self._bytes = 0

    def count(self, member: Member) -> None:
        limits = self._limits
        self._entries += 1
        if self._entries > limits.max_entries:
            raise InvalidInput(f"{self._path} has more than {limits.max_entries} entries")
        if member.size > limits.max_bytes:
            raise self._too_large()

    def take(self, written: int) -> None:
        self._bytes += written
        limits = self._limits
        if self._bytes > limits.max_bytes:
            raise self._too_large()
        if self._bytes > limits.free_bytes and self._bytes > limits.max_ratio * self._packed:
            raise InvalidInput(
                f"{self._path} unpacks to more than {limits.max_ratio:g} times its size; it may be a bomb"
            )

    def _too_large(self) -> InvalidInput:
        return InvalidInput(f"{self._path} unpacks to more than {self._limits.max_bytes} bytes")


def _inner_path(path: Path, member: Member) -> PurePosixPath | None:
    """Return where an entry lies in the folder, None for the folder itself. Raises `InvalidInput`."""
    shown = member.name[:120]
    if member.kind not in ("file", "folder"):
        raise InvalidInput(f"{path}: {shown!r} is a {member.kind}; only files and folders are unpacked")
    name = PurePosixPath(member.name)
    unsafe = name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name
    if unsafe or ":" in (name.parts[0] if name.parts else ""):
        raise InvalidInput(f"{path}: {shown!r} would lie outside the folder that it is unpacked into")
    return name if name.parts else None


def _write(path: Path, container: Container, member: Member, place: Path, allowed: _Allowance) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(place, flags, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"{path}: {member.name[:120]!r} comes twice, or cannot be written: {error}"
        ) from None
    with os.fdopen(descriptor, "wb") as file, container.open(member) as content:
        _copy(content, file, allowed)


def _copy(content: IO[bytes], file: IO[bytes], allowed: _Allowance) -> None:
    while chunk := content.read(_CHUNK_BYTES):
        allowed.take(len(chunk))
        file.write(chunk)
