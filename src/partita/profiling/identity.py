"""What a profile belongs to: hashes of a model's files, so that another model never gets its numbers."""

import hashlib
import platform
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.formats import FACTORY, PACKAGES
from partita.core.process_settings import ProcessSettings
from partita.core.profile import Provenance
from partita.core.topology import Topology
from partita.engine.instance import ModelLaunch
from partita.system.model_files import files_beside
from partita.wire.archive_call import RUNTIME as ARCHIVE
from partita.wire.archive_call import VERSION

_CHUNK_BYTES = 1 << 20
_LARGE_BYTES = 1 << 22
_LEFT_OUT = {"__pycache__", ".git"}


def model_hash(path: Path) -> str:
    """Return the sha256, hexadecimal, of a model's content: its file with what belongs to it, or its folder.

    Names within a folder count, its own place does not. That of a large file is remembered as long as it is
    the same, since it takes time from those that are served. Raises `InvalidInput` if it cannot be read.
    """
    if path.is_file() and (shown := _shown(path))[0] >= _LARGE_BYTES:
        found, beside = _remembered(path, shown)
        if all(file.is_file() and _shown(file) == before for file, before in beside):
            return found
    return _hash(path)


def _shown(file: Path) -> tuple[int, int, int]:
    """Size, time of the last change, and place on the disk: what differs where the content does."""
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


@lru_cache(maxsize=64)
def _remembered(
    path: Path,
    shown: tuple[int, int, int],  # noqa: ARG001 a part of the key
) -> tuple[str, tuple[tuple[Path, tuple[int, int, int]], ...]]:
    beside = tuple((file, _shown(file)) for file in files_beside(path))
    return _hash(path), beside


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                inner = file.relative_to(path)
                if file.is_file() and not _LEFT_OUT.intersection(inner.parts):
                    digest.update(f"{inner.as_posix()}\0{file.stat().st_size}\0".encode())
                    _feed(digest, file)
        else:
            _feed(digest, path)
            for file in files_beside(path):
                digest.update(f"\0{file.name}\0{file.stat().st_size}\0".encode())
                _feed(digest, file)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def _feed(digest: "hashlib._Hash", file: Path) -> None:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)


def installed_version(runtime: str) -> str:
    """Return the version that a worker of this runtime would have, "" where that cannot be told."""
    if runtime == "python":
        return platform.python_version()
    if runtime == ARCHIVE:
        return VERSION
    package = PACKAGES.get(runtime)
    try:
        return metadata.version(runtime if package is None else package.distribution)
    except metadata.PackageNotFoundError:
        return ""


def provenance_of(
    launch: ModelLaunch,
    *,
    model_path: Path,
    topology: Topology,
    runtime_version: str | None = None,
    dimensions: Mapping[str, int] | None = None,
    samples: Path | None = None,
) -> Provenance:
    """Return what a profile of this model here belongs to. Raises `InvalidInput` for unreadable files.

    Without a worker to ask, the version is the installed one and the sizes of axes are those given.
    """
    return Provenance(
        model_hash=model_hash(model_path),
        runtime=launch.runtime,
        runtime_version=installed_version(launch.runtime) if runtime_version is None else runtime_version,
        cpu_model=topology.cpu_model,
        topology=str(topology),
        dimensions=dict(launch.dimensions if dimensions is None else dimensions),
        handler_hash=handling_hash(launch),
        samples_hash="" if samples is None else model_hash(samples),
    )


def handling_hash(launch: ModelLaunch) -> str:
    """Return a hash of handler, process settings, options and the factory's code; "" without any."""
    if launch.handler is None and not launch.options and launch.process == ProcessSettings():
        return ""
    digest = hashlib.sha256(repr(sorted(launch.options.items())).encode())
    if launch.process != ProcessSettings():
        digest.update(repr(launch.process).encode())
    if launch.handler is not None:
        file, _, name = launch.handler.rpartition(":")
        digest.update(f"\0{name}\0{model_hash(Path(file))}".encode())
    if given := str(launch.options.get(FACTORY, "")):
        digest.update(model_hash(Path(launch.path).parent / given.rpartition(":")[0]).encode())
    return digest.hexdigest()
