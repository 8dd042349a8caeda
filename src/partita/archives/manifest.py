"""``MAR-INF/MANIFEST.json``: what an archive says it holds."""

import re
from typing import Any

import msgspec

from partita.core.errors import InvalidInput

PLACE = "MAR-INF/MANIFEST.json"
LARGEST_BYTES = 1 << 20
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """The model of a manifest; files are named as they lie at the archive's root."""

    model_name: str
    handler: str = ""
    serialized_file: str | None = None
    model_file: str | None = None
    model_version: str | float | None = None
    requirements_file: str | None = None
    config_file: str | None = None


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """All of a manifest that means anything to a server."""

    model: Entry
    runtime: str = "python"
    created_on: str = ""
    archiver_version: str = ""

    @property
    def version(self) -> str:
        """The model's version, ``1.0`` where the manifest has none."""
        return str(self.model.model_version or "1.0")


def read_manifest(data: bytes, where: str) -> Manifest:
    """Return a manifest. Raises `InvalidInput` that begins with `where`."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"{where}: {PLACE} is not a manifest: {error}") from None
    model = manifest.model
    if not _NAME.match(model.model_name):
        raise InvalidInput(f"{where}: {model.model_name[:80]!r} is no name for a model")
    if not _NAME.match(manifest.version):
        raise InvalidInput(f"{where}: {manifest.version[:80]!r} is no version")
    if not model.handler:
        raise InvalidInput(f"{where}: {PLACE} names no handler")
    for field, name in _files(model).items():
        if name is not None and not _is_inside(name):
            raise InvalidInput(f"{where}: {field} {name[:80]!r} is not a file of the archive")
    return manifest


def _files(model: Entry) -> dict[str, Any]:
    return {
        "serializedFile": model.serialized_file,
        "modelFile": model.model_file,
        "requirementsFile": model.requirements_file,
        "configFile": model.config_file,
        "handler": model.handler.partition(":")[0],
    }


def _is_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and "\\" not in name
