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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return where profiles and artefacts are kept: ``PARTITA_CACHE_DIR``, else the user's cache folder."""
    environ = os.environ if environ is None else environ
    if given := environ.get("PARTITA_CACHE_DIR"):
        return Path(given).expanduser()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "partita"


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


def kept(folder: Path, key: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of this artefact; `make` fills it first, where nobody has yet.

    `make` gets an empty folder, and what it raises is passed on, with nothing kept. Where `folder` cannot be
    written to, an `OSError` is raised.
    """
    place = folder / key
    if place.is_dir():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{key}.lock"):
        if place.is_dir():
            return place
        _remove_unfinished(folder, key)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=".unfinished", dir=folder))
        try:
            make(unfinished)
            unfinished.rename(place)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return place


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, alone among all processes. It stays: removing it would let two hold it at once."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_unfinished(folder: Path, key: str) -> None:
    """Remove what a process left that was killed while it made the same."""
    for left in folder.glob(f"{key}.*.unfinished"):
        shutil.rmtree(left, ignore_errors=True)
