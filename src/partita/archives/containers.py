"""The forms that an archive comes in, as one: zip (``.mar``), tar with gzip (``.tar.gz``), or a folder."""

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from partita.archives import manifest
from partita.archives.manifest import Manifest, read_manifest
from partita.core.errors import InvalidInput

SUFFIXES = (".mar", ".tar.gz", ".tgz")
_DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError),
    *(RuntimeError, NotImplementedError),  # encrypted; of a compression that is not known
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One entry of an archive. `kind` is ``file``, ``folder``, or what else it claims to be."""

    name: str
    size: int
    packed_size: int | None
    """Bytes that it takes in the archive; None where they are not told for each entry."""
    kind: str


class Container(Protocol):
    """An archive that is open."""

    def members(self) -> Iterator[Member]:
        """Yield every entry in order. One of a tar must be read before the next is asked for."""
        ...

    def open(self, member: Member) -> IO[bytes]:
        """Open an entry's content."""
        ...


def is_archive(path: Path) -> bool:
    """Whether a path looks like an archive: by its name, or a folder by its manifest."""
    if path.is_dir():
        return (path / manifest.PLACE).is_file()
    return path.name.endswith(SUFFIXES)


@contextmanager
def opened(path: Path) -> Iterator[Container]:
    """Open an archive's file. Raises `InvalidInput` for what is neither zip nor tar, or is damaged."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield _Zip(archive)
        elif tarfile.is_tarfile(path):
            with tarfile.open(path, "r:*") as tar:
                yield _Tar(tar)
        else:
            raise InvalidInput(f"{path} is no archive: expected a zip or a gzipped tar file")
    except _DAMAGED as error:
        raise InvalidInput(f"{path} cannot be read as an archive: {error}") from error


def read_file(path: Path, name: str, largest: int) -> bytes | None:
    """Return one file of an archive or a folder, None if it has none of that name. Raises `InvalidInput`."""
    if path.is_dir():
        file = path / name
        data = file.read_bytes()[: largest + 1] if file.is_file() else None
    else:
        data = _read_packed(path, name, largest)
    if data is not None and len(data) > largest:
        raise InvalidInput(f"{path}: {name} is larger than {largest} bytes")
    return data


def manifest_of(path: Path) -> Manifest:
    """Return an archive's manifest. Raises `InvalidInput`."""
    data = read_file(path, manifest.PLACE, manifest.LARGEST_BYTES)
    if data is None:
        raise InvalidInput(f"{path} is no TorchServe archive: it holds no {manifest.PLACE}")
    return read_manifest(data, str(path))


def _read_packed(path: Path, name: str, largest: int) -> bytes | None:
    """Return a file at the archive's root, or in the one folder that holds everything, as in a tar."""
    with opened(path) as container:
        for member in container.members():
            found = member.name.removeprefix("./")
            if member.kind == "file" and name in (found, found.partition("/")[2]):
                with container.open(member) as content:
                    return content.read(largest + 1)
    return None


class _Zip:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def members(self) -> Iterator[Member]:
        for info in self._archive.infolist():
            mode = info.external_attr >> 16
            kind = "folder" if info.is_dir() else "file"
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "link" if stat.S_ISLNK(mode) else "special file"
            yield Member(name=info.filename, size=info.file_size, packed_size=info.compress_size, kind=kind)

    def open(self, member: Member) -> IO[bytes]:
        return self._archive.open(member.name)


class _Tar:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._info: tarfile.TarInfo | None = None

    def members(self) -> Iterator[Member]:
        for info in self._archive:
            self._info = info
            if info.issym() or info.islnk():
                kind = "link"
            else:
                kind = "file" if info.isreg() else "folder" if info.isdir() else "special file"
            yield Member(name=info.name, size=info.size, packed_size=None, kind=kind)

    def open(self, member: Member) -> IO[bytes]:  # noqa: ARG002
        assert self._info is not None
        content = self._archive.extractfile(self._info)
        if content is None:
            raise tarfile.TarError(f"{self._info.name} has no content")
        return content
