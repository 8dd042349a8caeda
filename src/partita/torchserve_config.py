"""``config.properties``: TorchServe's settings, as ours.

A key that nobody knows, or that changes nothing here, is named in a warning. What ``partita.toml`` or the
command line says goes before it; an archive's own ``model-config.yaml`` does too.
"""

import logging
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import msgspec

from partita.archives.containers import is_archive, manifest_of
from partita.archives.model_config import settings_of, warn_of_model
from partita.core.errors import InvalidInput
from partita.settings import ModelSettings, ServerSettings, Settings
from partita.system.addresses import Address

log = logging.getLogger("partita")

FOR_ALL = "*"
"""Key of `Settings.archive_defaults` for every archive."""
EFFECTLESS = frozenset(
    [
        "number_of_netty_threads",
        "netty_client_threads",
        "number_of_gpu",
        "cors_allowed_methods",
        "cors_allowed_headers",
        "cpu_launcher_enable",
        "cpu_launcher_args",
        "ipex_enable",
        "ipex_gpu_enable",
        "blacklist_env_vars",
        "keystore_type",
        "metrics_mode",
        "metrics_config",
        "metrics_format",
        "workflow_store",
        "ts_open_inference_protocol",
        "prefer_direct_buffer",
        "async_logging",
        "plugins_path",
        "use_native_io",
        "vmargs",
        "NUM_WORKERS",
        "number_of_cpu",
        "system_metrics_cmd",
        "model_snapshot",
        "tsConfigFile",
        "version",
    ]
)
"""Known keys that nothing here needs, or that say what is measured here."""


def read_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of a Java properties file. Raises `InvalidInput` if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    found: dict[str, str] = {}
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    for line in map(str.strip, joined.splitlines()):
        if not line or line[0] in "#!":
            continue
        match = re.match(r"([^=:\s]+)\s*[=:\s]\s*(.*)$", line)
        if match:
            found[match.group(1)] = match.group(2).strip()
    return found


def with_properties(
    settings: Settings, path: Path, *, environ: Mapping[str, str], models: tuple[str, ...] = ()
) -> Settings:
    """Return settings with those of a ``config.properties`` below them. Raises `InvalidInput`.

    `models` are those of the command line instead of ``load_models``.
    """
    given = read_properties(path)
    if given.get("enable_envvars_config", "").lower() == "true":
        names = {*SERVER, *MODEL, *EFFECTLESS, *_OTHERS}
        given |= {name: environ[f"TS_{name.upper()}"] for name in names if f"TS_{name.upper()}" in environ}
    for key in given.keys() - SERVER.keys() - MODEL.keys() - _OTHERS:
        known = "changes nothing here" if key in EFFECTLESS else "is not known"
        log.warning("%s: %s %s", path, key, known)
    settings = _with_server(settings, given, path)
    defaults = {FOR_ALL: _all_models(given, path), **_each_model(given, path)}
    settings = msgspec.structs.replace(settings, archive_defaults=defaults)
    wanted = models or tuple(re.split(r"[,\s]+", given.get("load_models", "").strip()))
    return with_models(settings, tuple(filter(None, wanted)))


def with_models(settings: Settings, wanted: tuple[str, ...]) -> Settings:
    """Return settings that serve these archives of the store: ``x.mar``, ``name=x.mar``, or ``all``.

    Instead of a file there may be a URL that ``allowed_urls`` matches. Raises `InvalidInput`.
    """
    if not wanted or wanted == ("none",):
        return settings
    if settings.server.model_store is None:
        raise InvalidInput("models are named, but there is no model store that they lie in")
    store = Path(settings.server.model_store)
    found: dict[str, Path] = {}
    for one in wanted:
        if one.lower() == "all":
            found |= {manifest_of(p).model.model_name: p for p in sorted(store.glob("*")) if is_archive(p)}
        else:
            name, file = _named(one)
            place = _fetched(file, settings) if "://" in file else _in_store(store, file)
            found[name or manifest_of(place).model.model_name] = place
    model = dict(settings.model)
    for name, place in found.items():
        model[name] = msgspec.structs.replace(model.get(name, ModelSettings()), path=str(place))
    return msgspec.structs.replace(settings, model=model)


def _named(one: str) -> tuple[str, str]:
    """Return what an archive is to be called, empty for its own name, and its file or URL."""
    is_named_url = re.match(r"([^=:/?#]+)=(\w+://.*)$", one)
    if is_named_url:
        return is_named_url[1], is_named_url[2]
    name, _, file = ("", "", one) if "://" in one else one.rpartition("=")
    return name, file


def _fetched(url: str, settings: Settings) -> Path:
    from partita.archives.fetching import fetch  # which few need

    if not settings.server.allowed_urls:
        raise InvalidInput(
            f"{url[:200]} is not fetched: allowed_urls is empty; name expressions for such URLs there"
        )
    return fetch(url, settings.server.allowed_urls, Path(_downloads().name))


@cache
def _downloads() -> TemporaryDirectory[str]:
    """Return the folder of what was fetched, which goes when this process ends."""
    return TemporaryDirectory(prefix="partita-")


def _in_store(store: Path, file: str) -> Path:
    for place in (store / file, store / f"{file}.mar"):
        if Path(file).name == file and file not in ("", ".", "..") and place.exists():
            return place
    raise InvalidInput(f"there is no archive {file!r} in the model store {store}")


# --- values ---------------------------------------------------------------------------------------


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return value.lower() == "true"


def _address(value: str) -> Address:
    parts = urlsplit(value if "://" in value else f"http://{value}")
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise ValueError("expected http://HOST:PORT")
    usual = 443 if parts.scheme == "https" else 80
    return Address(parts.hostname, usual if parts.port is None else parts.port)


SERVER: dict[str, tuple[str, Callable[[str], Any]]] = {
    "inference_address": ("http", _address),
    "management_address": ("management", _address),
    "metrics_address": ("metrics", _address),
    "model_store": ("model_store", str),
    "max_request_size": ("max_body_bytes", int),
    "unregister_model_timeout": ("drain_s", float),
    "install_py_dep_per_model": ("requirements", lambda v: "install" if _flag(v) else "refuse"),
    "allowed_urls": ("allowed_urls", lambda v: tuple(filter(None, (one.strip() for one in v.split(","))))),
    "disable_token_authorization": ("token_auth", lambda v: not _flag(v)),
    "enable_model_api": ("enable_model_api", _flag),
    "cors_allowed_origin": ("cors_origins", lambda v: (v.strip(),)),
    "token_expiration_min": ("token_expiration_min", float),
    "private_key_file": ("tls_key", str),
    "certificate_file": ("tls_certificate", str),
}
"""Keys that stand for one of ``[server]``, and what is made of the value."""
MODEL: dict[str, tuple[str, Callable[[str], Any]]] = {
    "job_queue_size": ("queue_size", int),
    "default_response_timeout": ("execution_limit_s", float),
    "default_startup_timeout": ("load_limit_s", float),
    "default_workers_per_model": ("workers", int),
    "max_response_size": ("max_output_bytes", int),
    "service_envelope": ("envelope", str),
    "decode_input_request": ("decode_input_request", _flag),
    "limit_max_image_pixels": ("limit_max_image_pixels", _flag),
}
"""Keys that are about every model."""
_OPTIONS = ("envelope", "decode_input_request", "limit_max_image_pixels")
_OTHERS = frozenset(
    (
        "load_models",
        "models",
        "enable_envvars_config",
        "grpc_inference_address",
        "grpc_inference_port",
        "grpc_management_address",
        "grpc_management_port",
        "keystore",
    )
)
_GRPC = {"grpc": ("grpc_inference", 7070), "grpc_management": ("grpc_management", 7071)}
"""Our setting for a gRPC port, what the keys of its address and port begin with, and the usual port."""


def _converted(
    table: Mapping[str, tuple[str, Callable[[str], Any]]], given: Mapping[str, str], path: Path
) -> Any:
    found = {}
    for key, (ours, convert) in table.items():
        if key in given:
            try:
                found[ours] = convert(given[key])
            except ValueError as error:
                raise InvalidInput(f"{path}: {key} = {given[key][:80]!r}: {error}") from None
    return found


def _with_server(settings: Settings, given: Mapping[str, str], path: Path) -> Settings:
    if "keystore" in given:
        raise InvalidInput(
            f"{path}: keystore: give PEM files as private_key_file and certificate_file instead"
        )
    changes = _converted(SERVER, given, path)
    for name in ("model_store", "tls_key", "tls_certificate"):
        if name in changes:
            changes[name] = str(path.absolute().parent / changes[name])
    for name, (key, usual) in _GRPC.items():
        if f"{key}_port" in given or f"{key}_address" in given:
            place = f"{given.get(f'{key}_address', '127.0.0.1')}:{_port(given, f'{key}_port', usual, path)}"
            changes |= _converted({place: (name, _address)}, {place: place}, path)
    default = ServerSettings()
    own = {name for name in changes if getattr(settings.server, name) != getattr(default, name)}
    changes = {name: value for name, value in changes.items() if name not in own}
    try:
        server = msgspec.structs.replace(settings.server, **changes)
    except ValueError as error:
        raise InvalidInput(f"{path}: {error}") from None
    return msgspec.structs.replace(settings, server=server)


def _port(given: Mapping[str, str], key: str, usual: int, path: Path) -> int:
    text = given.get(key, str(usual))
    if not text.isdigit():
        raise InvalidInput(f"{path}: {key} = {text[:40]!r} is not a number")
    return int(text)


def _all_models(given: Mapping[str, str], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = _converted(MODEL, given, path)
    options = {name: found.pop(name) for name in _OPTIONS if name in found}
    if workers := found.pop("workers", 0):
        found |= {"min_workers": workers, "max_workers": workers}
    return found | ({"options": options} if options else {})


def _each_model(given: Mapping[str, str], path: Path) -> dict[str, dict[str, Any]]:
    """Return what ``models`` says of each: its default version, or the only one there is."""
    if "models" not in given:
        return {}
    try:
        document = msgspec.json.decode(given["models"], type=dict[str, dict[str, dict[str, Any]]])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"{path}: models: {error}") from None
    found = {}
    for name, versions in document.items():
        chosen = [one for one in versions.values() if one.get("defaultVersion")] or list(versions.values())
        if chosen:
            warn_of_model(chosen[0], f"{path}: models: {name}")
            found[name] = settings_of(chosen[0], f"{path}: models: {name}")
    return found
