"""Where archives lie unpacked: private folders, one for each content, that go when nobody needs them.

A folder is named for its archive's sha256. Whoever uses it holds a shared lock on the file beside it, so that
several servers share one, and the last to let go removes it. What a crash has left is removed by whoever
unpacks something next.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from partita.archives.unpacking import DEFAULT, Limits, unpack
from partita.core.errors import InvalidInput

_CHUNK_BYTES = 1 << 20
Finish = Callable[[Path], None]


@dataclass(slots=True)
class _Held:
    folder: Path
    descriptor: int
    uses: int = 1


@dataclass(slots=True)
class ArchiveFolders:
    """The folders that this process uses, below one root."""

    root: Path
    limits: Limits = DEFAULT
    _held: dict[str, _Held] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, archive: Path, *, variant: str = "", finish: Finish | None = None) -> Path:
        """Return the folder that an archive lies unpacked in; `release` it as often.

        `finish` completes a folder that was just unpacked; `variant` tells such folders apart. Raises
        `InvalidInput`.
        """
        name = _digest(archive) + variant
        with self._lock:
            if (held := self._held.get(name)) is not None:
                held.uses += 1
                return held.folder
            self._make_root()
            self._sweep()
            held = self._held[name] = self._taken(name, archive, finish)
            return held.folder

    def release(self, folder: Path) -> None:
        """Let go of a folder once; the last to do so removes it. What is no such folder is left alone."""
        with self._lock:
            held = self._held.get(folder.name)
            if held is None or held.folder != folder:
                return
            held.uses -= 1
            if not held.uses:
                del self._held[folder.name]
                self._let_go(held.folder, held.descriptor)

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            for held in self._held.values():
                self._let_go(held.folder, held.descriptor)
            self._held.clear()

    def _make_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InvalidInput(f"archives cannot be unpacked below {self.root}: {error}") from None

    def _taken(self, name: str, archive: Path, finish: Finish | None) -> _Held:
        folder = self.root / name
        while True:
            descriptor = os.open(self._lock_file(folder), os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if not folder.is_dir():
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if not folder.is_dir() and self._is_current(folder, descriptor):
                        self._unpack(archive, folder, finish)
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # not at one stroke: another may come between
                if folder.is_dir() and self._is_current(folder, descriptor):
                    return _Held(folder, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _unpack(self, archive: Path, folder: Path, finish: Finish | None) -> None:
        unfinished = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        try:
            unpack(archive, unfinished, self.limits)
            if finish is not None:
                finish(unfinished)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _is_current(self, folder: Path, descriptor: int) -> bool:
        with suppress(OSError):
            return os.fstat(descriptor).st_ino == self._lock_file(folder).stat().st_ino
        return False

    def _let_go(self, folder: Path, descriptor: int) -> None:
        """Remove the folder unless somebody else uses it."""
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder.with_name(f"{folder.name}.part"), ignore_errors=True)
            self._lock_file(folder).unlink(missing_ok=True)
        os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what processes have left that are gone."""
        for lock in self.root.glob("*.lock"):
            if lock.stem not in self._held:
                with suppress(OSError):
                    self._let_go(lock.with_suffix(""), os.open(lock, os.O_RDWR))

    @staticmethod
    def _lock_file(folder: Path) -> Path:
        return folder.with_name(f"{folder.name}.lock")


_by_root: dict[Path, ArchiveFolders] = {}


def folders_below(cache: Path) -> ArchiveFolders:
    """Return this process's folders below a cache folder; all are let go of when the process ends."""
    root = cache / "archives"
    found = _by_root.get(root)
    if found is None:
        found = _by_root[root] = ArchiveFolders(root)
        atexit.register(found.close)
    return found


def release(folder: Path) -> None:
    """Let go of a folder once, whichever cache it lies in."""
    for folders in _by_root.values():
        folders.release(folder)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    return digest.hexdigest()
