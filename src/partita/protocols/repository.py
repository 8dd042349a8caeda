"""The models on disk, as the protocols see them: which there are, and loading and unloading them."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec

from partita.core.errors import InvalidRequest
from partita.core.versions import LatestVersions, Version, Versions

MAX_FILES = 64
_FILE = re.compile(r"^[1-9]\d{0,8}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One model of the repository. `state` is READY, LOADING, UNLOADING or UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What a client wants a model loaded with instead of what lies on disk; empty = as it lies there."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of ``[model.NAME]``."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by ``VERSION/NAME``; they take the place of the model's folder."""
    source: str = ""
    """Its own name on disk, an archive's file or URL, where it is to be served under another name."""
    workers: int | None = None
    """How many instances it gets, as far as there are cores; None = as planned."""
    is_beside: bool = False
    """Whether the other versions of the model that are served go on being served."""


class Repository(Protocol):
    """Where models are found; loads and unloads them."""

    async def index(self) -> list[IndexEntry]:
        """Return every model that is served, or could be."""

    async def identity(self, source: str) -> tuple[str, str]:
        """Return the name of its own and the version that a model would be loaded with.

        `source` is its name, an archive's file, or the URL of one. Raises `ModelNotFound` or `InvalidInput`.
        """

    async def load(self, name: str, request: LoadRequest) -> None:
        """Serve a model, or its newest version in place of the one that is served, which serves until then.

        Raises `ModelNotFound`, `InvalidInput` or `LoadFailed`; what is served is then as it was.
        """

    async def unload(self, name: str, version: str = "") -> None:
        """Serve a model, or one version of it, no longer; what it has taken is finished.

        Raises `ModelNotFound`.
        """

    async def forget(self, source: str) -> None:
        """Keep no longer what this URL gave, if it is one; no model that is to be loaded comes from it."""


def load_request(parameters: Mapping[str, Any]) -> LoadRequest:
    """Return what the parameters of a load say: ``config``, and ``file:VERSION/NAME`` (bytes, or base64).

    Raises `InvalidRequest`.
    """
    settings: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key == "config":
            settings = _settings(value)
        elif key.startswith("file:"):
            files[_file_name(key.removeprefix("file:"))] = _content(key, value)
        else:
            raise InvalidRequest(f"unknown parameter {key!r}; there are config and file:VERSION/NAME")
    if files and "config" not in parameters:
        raise InvalidRequest("files need a config beside them, as for Triton")
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"a load takes at most {MAX_FILES} files")
    return LoadRequest(settings=settings, files=files)


def _file_name(name: str) -> str:
    if not _FILE.match(name):
        raise InvalidRequest(f"file {name[:80]!r}: expected VERSION/NAME, such as 1/model.onnx")
    if name.endswith((".py", ".pyc", ".so", ".toml")):
        raise InvalidRequest(f"file {name!r}: code and settings are not taken from clients")
    return name


def _content(key: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise InvalidRequest(f"{key}: expected its content in base64") from None


class _Batching(msgspec.Struct, frozen=True):
    max_queue_delay_microseconds: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0


class _Latest(msgspec.Struct, frozen=True):
    num_versions: Version = 1


class _Specific(msgspec.Struct, frozen=True):
    versions: tuple[Version, ...] = ()


class _Policy(msgspec.Struct, frozen=True):
    latest: _Latest | None = None
    all: dict[str, Any] | None = None
    specific: _Specific | None = None


class _Config(msgspec.Struct, frozen=True):
    """What is read of a model configuration in Triton's shape."""

    backend: str = ""
    max_batch_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] | None = None
    dynamic_batching: _Batching | None = None
    version_policy: _Policy = _Policy()


_RUNTIMES = {"": None, "onnxruntime": "onnxruntime", "python": "python"}


def _settings(config: Any) -> dict[str, Any]:
    """Return the keys of ``[model.NAME]`` that a model configuration stands for."""
    if not isinstance(config, str | bytes):
        raise InvalidRequest("config: expected the model configuration as JSON text")
    try:
        given = msgspec.json.decode(config, type=_Config)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"config: {error}") from None
    if given.backend not in _RUNTIMES:
        raise InvalidRequest(f"config: backend {given.backend!r} is not one of onnxruntime, python")
    settings: dict[str, Any] = {}
    if (runtime := _RUNTIMES[given.backend]) is not None:
        settings["runtime"] = runtime
    if given.max_batch_size:
        settings["max_batch"] = given.max_batch_size
    if given.dynamic_batching is not None:
        settings["batch_timeout_ms"] = given.dynamic_batching.max_queue_delay_microseconds / 1000
    if (versions := _versions(given.version_policy)) is not None:
        settings["versions"] = versions
    return settings


def _versions(policy: _Policy) -> Versions | None:
    """Return a version policy as our setting `versions`, None where there is none."""
    if policy.all is not None:
        return "all"
    if policy.specific is not None and policy.specific.versions:
        return policy.specific.versions
    return None if policy.latest is None else LatestVersions(latest=policy.latest.num_versions)
