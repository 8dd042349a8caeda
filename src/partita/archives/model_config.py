"""``model-config.yaml``: what an archive's author sets for it."""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from partita.archives.containers import read_file
from partita.archives.manifest import Manifest
from partita.archives.remarks import remarks, shown
from partita.core.errors import InvalidInput, MissingExtra
from partita.settings import ModelSettings

log = logging.getLogger("partita")

LARGEST_BYTES = 1 << 20
LARGEST = 10**9
"""Of any setting."""

KEYS = {
    "minWorkers": "min_workers",
    "maxWorkers": "max_workers",
    "batchSize": "max_batch",
    "maxBatchDelay": "batch_timeout_ms",
    "responseTimeout": "execution_limit_s",
    "startupTimeout": "load_limit_s",
    "jobQueueSize": "queue_size",
    "clientTimeoutInMills": "deadline_ms",
}
"""Keys of the file, and which key of ``[model.NAME]`` each stands for."""
_ZERO_IS_NONE = ("minWorkers", "maxWorkers", "clientTimeoutInMills")


def read_config(archive: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the keys of ``[model.NAME]`` that an archive's configuration file stands for.

    Raises `InvalidInput`.
    """
    return settings_of(_document(archive, manifest), f"{archive}: {manifest.model.config_file}")


def warn_of_config(archive: Path, manifest: Manifest) -> None:
    """Warn of what an archive's configuration file says to no effect, once. Raises `InvalidInput`."""
    known = frozenset(KEYS)
    for remark in remarks(_document(archive, manifest), known, is_handlers=True):
        _warn_once(f"{archive}: {manifest.model.config_file}: {remark}")


def warn_of_model(document: dict[str, Any], where: str) -> None:
    """Warn of what ``models`` of a ``config.properties`` says of one to no effect."""
    for remark in remarks(document, frozenset((*KEYS, "marName", "defaultVersion")), is_handlers=False):
        _warn_once(f"{where}: {remark}")


@lru_cache(maxsize=1024)
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _document(archive: Path, manifest: Manifest) -> dict[str, Any]:
    name = manifest.model.config_file
    if not name:
        return {}
    data = read_file(archive, name, LARGEST_BYTES)
    if data is None:
        raise InvalidInput(f"{archive} names the configuration file {name}, and does not hold it")
    return _parsed(data, f"{archive}: {name}")


def settings_of(document: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the keys of ``[model.NAME]`` that these keys stand for. Raises `InvalidInput`."""
    found: dict[str, Any] = {}
    for key, ours in KEYS.items():
        value = document.get(key)
        if value is None or (value == 0 and key in _ZERO_IS_NONE):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
            raise InvalidInput(f"{where}: {key} = {shown(value)} is not a number from 0 to {LARGEST}")
        found[ours] = value
    return found


def under(known: ModelSettings, given: dict[str, Any], where: str) -> ModelSettings:
    """Return settings in which what is at its default is as given. Raises `InvalidInput`."""
    default = ModelSettings()
    own = {key for key in given if getattr(known, key) != getattr(default, key)}
    try:
        merged = msgspec.structs.replace(known, **{key: v for key, v in given.items() if key not in own})
        return msgspec.convert(msgspec.to_builtins(merged), ModelSettings)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidInput(f"{where}: {error}") from None


def _parsed(data: bytes, where: str) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtra(f"{where} needs the package yaml: pip install 'partita[torchserve]'") from None
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidInput(f"{where} is not YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidInput(f"{where}: expected keys and values")
    return document
