"""Files that are made once and kept: compiled models, and models in another format.

Several servers may want the same file at once, and any of them may be killed meanwhile. One makes it, under a
lock that the kernel lets go of with the process; it appears under its name only when it is whole.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from stat import S_ISDIR

from partita.core.errors import InvalidInput

_CHUNK_BYTES = 1 << 20
_AGAIN_S = 0.02
_FORGOTTEN_S = 28 * 24 * 3600.0


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return where profiles and artefacts are kept: ``PARTITA_CACHE_DIR``, else the user's cache folder.

    Raises `InvalidInput` where no such folder is known.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get("PARTITA_CACHE_DIR"):
        return Path(given).expanduser()
    if (base := environ.get("XDG_CACHE_HOME")) and Path(base).is_absolute():
        return Path(base) / "partita"
    try:
        return Path.home() / ".cache" / "partita"
    except RuntimeError:
        raise InvalidInput(
            "this user has no home folder to keep profiles and models in; name a folder in PARTITA_CACHE_DIR"
        ) from None


def artefact_key(files: Iterable[Path], *facts: object) -> str:
    """Return a name for what is made of the content of these files and of these facts, 32 characters."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:32]


def kept(
    folder: Path,
    key: str,
    make: Callable[[Path], None],
    *,
    is_good: Callable[[Path], bool] = Path.is_dir,
    limit_s: float | None = None,
) -> Path:
    """Return the folder of this artefact; `make` fills it first, where nobody has yet.

    `make` gets an empty folder, and what it raises is passed on, with nothing kept. One that is not `is_good`
    is made anew, and so is one that another user put there, since it could hold code. An `OSError` is raised
    where `folder` cannot be written to, and a `TimeoutError` after `limit_s` of waiting for who makes the
    same.
    """
    place = folder / key
    if _is_own(place) and is_good(place):
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{key}.lock", limit_s):
        is_there = _is_own(place)
        if is_there and is_good(place):
            return place
        if not is_there:
            _remove_foreign(place)
        _remove_unfinished(folder, key)
        unfinished = _unfinished(folder, key)
        try:
            make(unfinished)
            remove_kept(place)
            unfinished.rename(place)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return place


def used(place: Path) -> None:
    """Remember that one is wanted, as far as the folder can be written to."""
    with contextlib.suppress(OSError):
        os.utime(place)
        os.utime(place.parent)


def remove_kept(place: Path) -> None:
    """Remove one, if it is there. Who has its files mapped keeps them."""
    if place.is_dir():
        gone = _unfinished(place.parent, place.name)
        with contextlib.suppress(OSError):
            place.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _is_own(place: Path) -> bool:
    """Whether this is a folder of our own user, or of root's."""
    with contextlib.suppress(OSError):
        stat = place.lstat()
        return S_ISDIR(stat.st_mode) and stat.st_uid in (os.geteuid(), 0)
    return False


def _remove_foreign(place: Path) -> None:
    """Remove what somebody else put there. Raises `PermissionError` where that is not ours to do."""
    remove_kept(place)
    if os.path.lexists(place):
        raise PermissionError(
            f"{place} is another user's, or no folder; give PARTITA_CACHE_DIR a folder of your own"
        )


def limit_kept(folder: Path, most_bytes: int) -> None:
    """Remove what was not used for longest, until a folder and those beside it have at most so many bytes.

    What nobody has used for weeks goes as well, and so do such folders beside this one.
    """
    total, now = 0, time.time()
    places = [found for _, one in _newest_first(folder.parent) for found in _newest_first(one)]
    for changed, place in sorted(places, reverse=True):
        with contextlib.suppress(OSError):
            total += sum(file.stat().st_size for file in place.iterdir())
        if total > most_bytes or now - changed > _FORGOTTEN_S:
            shutil.rmtree(place, ignore_errors=True)
    for changed, other in _newest_first(folder.parent):
        if other != folder and now - changed > _FORGOTTEN_S:
            shutil.rmtree(other, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, limit_s: float | None) -> Iterator[None]:
    """Hold a lock file, alone among all processes. It stays: removing it would let two hold it at once."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if limit_s is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            _lock_within(descriptor, limit_s)
        yield
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise TimeoutError(f"another process has been at it for {limit_s:g} s") from None
            time.sleep(_AGAIN_S)


def _unfinished(folder: Path, key: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=".unfinished", dir=folder))


def _newest_first(folder: Path) -> list[tuple[float, Path]]:
    found = []
    with contextlib.suppress(OSError):  # the folder is gone by now
        for place in folder.iterdir():
            with contextlib.suppress(OSError):
                if place.is_dir():
                    found.append((place.stat().st_mtime, place))
    return sorted(found, reverse=True)


def _remove_unfinished(folder: Path, key: str) -> None:
    """Remove what a process left that was killed while it made the same."""
    for left in folder.glob(f"{key}.*.unfinished"):
        shutil.rmtree(left, ignore_errors=True)
