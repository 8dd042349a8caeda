"""What a user may set, with the defaults: ``partita.toml``, and the only place that reads the environment.

A setting comes from the command line, else from the file, else from the environment (``PARTITA_HTTP`` for
``[server] http``, and so on), else from the defaults here.
"""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from partita.core.errors import InvalidInput, MissingExtra
from partita.core.process_settings import ProcessSettings
from partita.core.versions import Versions
from partita.reading import read_table, read_toml
from partita.system.addresses import Address, parse_origin
from partita.system.artefacts import cache_dir as cache_dir  # noqa: PLC0414 for those who ask the settings
from partita.system.cpus import parse_cores

Positive = Annotated[int, msgspec.Meta(ge=1)]
Duration = Annotated[float, msgspec.Meta(gt=0)]
Wait = Annotated[float, msgspec.Meta(ge=0)]
PolicyName = Literal["eager", "aggregate"]
Tune = Literal["background", "before", "never"]
Requirements = Literal["refuse", "ignore", "install"]

_ADDRESSES = ("http", "management", "metrics", "grpc", "grpc_management")
TRACING_EXTRA = "tracing needs an extra; install it with pip install 'partita[tracing]'"
GRPC_EXTRA = "gRPC needs an extra; install it with pip install 'partita[grpc]'"
AGGREGATE_TIMEOUT_MS = 10.0
"""How long policy `aggregate` waits for a full batch where nobody says; `eager` does not wait."""


def _check_cores(cores: str | int | None) -> None:
    if isinstance(cores, int):
        if cores < 1:
            raise ValueError("cores must be at least 1")
    elif cores is not None:
        try:
            parse_cores(cores.strip().removesuffix(","))
        except InvalidInput as error:
            raise ValueError(str(error)) from error


def _origins(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return origins as browsers write them."""
    try:
        return tuple(one if one == "*" else parse_origin(one) for one in given)
    except InvalidInput as error:
        raise ValueError(f"cors_origins: {error}") from error


class InputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One input that the model file does not describe. `shape` has the batch axis, −1, in front."""

    shape: tuple[Annotated[int, msgspec.Meta(ge=-1)], ...]
    datatype: str


class InstanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a plan by hand: its cores as a list, or how many on which socket, and its items."""

    cores: str | None = None
    threads: Positive | None = None
    socket: int | None = None
    batch: Positive = 1
    micro_batch: Positive | None = None

    def __post_init__(self) -> None:
        _check_cores(self.cores)
        if (self.cores is None) == (self.threads is None):
            raise ValueError('an instance needs either cores = "0-3" or threads = 4')
        if self.cores is not None and self.socket is not None:
            raise ValueError("an instance's cores say which socket it is on; leave socket out")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``[model.NAME]``: one model. Times named ``_ms`` and ``_s`` are milliseconds and seconds."""

    path: str | None = None
    """File or folder; only needed where the model is not given on the command line."""
    version: str | int | None = None
    """The one version folder to serve; by default as `versions`."""
    versions: Versions | None = None
    """Which version folders to serve at once: ``"all"``, ``{ latest = 2 }`` or ``[1, 3]``.

    None = as a ``config.pbtxt`` says, else the highest number. The highest of them answers who names none.
    """
    runtime: str = "auto"
    """``onnxruntime`` or ``python``; `auto` is what was chosen by measuring, else goes by the file."""
    allow_deviation: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """How far outputs may be off, relative to an item's largest value, for lower precision to be chosen."""
    top1_agreement: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """Least share of calibration items whose largest output must be in its place, for the same."""
    handler: str | None = None
    """``FILE.py:Class``, relative to the model's folder."""
    min_workers: Positive | None = None
    """Fewest instances; None = as planned."""
    max_workers: Positive | None = None
    """Most instances; None = as planned."""
    max_batch: Positive = 32
    """Most items that one instance executes at once."""
    batch: Positive | None = None
    """Aggregate batch B that the plan is made for; None = good from 1 item to `max_batch` per core."""
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """How much its latency counts where several models divide the cores, or take turns on them."""
    policy: PolicyName | None = None
    """When batches are formed; None = as ``[server] policy``."""
    batch_timeout_ms: Wait | None = None
    """Longest wait for a fuller batch; None = 0 for `eager`, 10 for `aggregate`."""
    queue_size: Positive = 1024
    """Items that may wait; a request that finds no room is refused at once."""
    queue_timeout_ms: Duration | None = None
    """Longest wait of a request until its first item is executed; None = no limit."""
    deadline_ms: Duration | None = None
    """Longest time of a request in all, unless it names its own; None = no limit."""
    execution_limit_s: Duration = 60.0
    """A worker that makes no progress with a batch for this long is replaced."""
    load_limit_s: Duration = 120.0
    """A worker that is not ready after this long has failed to load."""
    max_output_bytes: Positive = 256 << 20
    """Most that the outputs of one item may have; the item of a larger one fails."""
    inputs: dict[str, InputSettings] = {}
    dimensions: dict[str, Positive] = {}
    """Sizes of symbolic axes, for warm-up and profiling."""
    samples: str | None = None
    """Items to profile with: .npy or .npz; for an archive a file or folder of requests' bodies."""
    instances: tuple[InstanceSettings, ...] = ()
    """A plan by hand; empty = planned."""
    options: dict[str, str | int | float | bool] = {}
    """Settings of the runtime itself."""
    process: ProcessSettings = ProcessSettings()
    """How the worker's process is set up."""

    def __post_init__(self) -> None:
        if self.version is not None and self.versions is not None:
            raise ValueError("version and versions cannot both be given")
        if self.versions == ():
            raise ValueError("versions names none")
        if (self.min_workers or 1) > (self.max_workers or self.min_workers or 1):
            raise ValueError("max_workers cannot be less than min_workers")

    @property
    def limits_workers(self) -> bool:
        """Whether the number of instances has limits."""
        return self.min_workers is not None or self.max_workers is not None

    def batch_timeout_s(self, policy: PolicyName) -> float:
        """Return the longest wait for a fuller batch under the server's policy, seconds."""
        if self.batch_timeout_ms is not None:
            return self.batch_timeout_ms / 1000
        return AGGREGATE_TIMEOUT_MS / 1000 if (self.policy or policy) == "aggregate" else 0.0


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``[server]``: addresses, cores, limits of connections. An address of ``off`` opens nothing."""

    http: Address | None = Address("127.0.0.1", 8080)
    management: Address | None = Address("127.0.0.1", 8081)
    metrics: Address | None = Address("127.0.0.1", 8082)
    grpc: Address | None = None
    grpc_management: Address | None = None
    """Another address of the same services, where TorchServe's clients look for its management."""
    token_auth: bool = True
    """Whether loading, unloading and other changes need a token."""
    token: str | None = None
    """A management token of your own, which does not expire; besides the one in the key file."""
    model_store: str | None = None
    """Folder of models that may be loaded later, besides those that the server starts with."""
    allowed_urls: tuple[str, ...] = ()
    """Regular expressions for whole URLs that TorchServe archives may be fetched from; none by default."""
    requirements: Requirements = "refuse"
    """What becomes of a TorchServe archive that wants packages: it is refused, served without, or they are
    installed for it.
    """
    inference_token: bool = False
    """Whether TorchServe's predictions, and archives with the envelope `kservev2`, need the inference key."""
    enable_model_api: bool = False
    """Whether models may be registered and unregistered over TorchServe's management API."""
    token_expiration_min: Duration = 60.0
    """How long the tokens of the key file are good for, minutes."""
    key_file: str = "key_file.json"
    """Where ``partita serve`` writes its tokens while it runs."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that changes may be asked for by, besides ``localhost`` and addresses in numbers."""
    cors_origins: tuple[str, ...] = ()
    """Origins (``https://app.example``) whose pages may ask, or change things with the token; ``*``: all."""
    cores: str | int | None = None
    """Which (``"0-3"``) or how many (4) CPUs the instances get; None = all that may run at once."""
    head_cores: str | None = None
    """CPUs of the head alone; None = anywhere, and no core is kept from the instances."""
    tune: Tune | None = None
    """Profile a model that has no profile yet: in the background while it serves with a safe plan, before it
    serves, or never; None = `background` for ``partita serve``, `before` elsewhere."""
    tune_budget_s: Duration = 30.0
    """Longest that such a profile may take, for each model; in the background waiting does not count."""
    tune_slowdown: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    """Most that the 99th percentile of a model's latency may grow while it is profiled in the background."""
    tune_sample_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20
    """Memory for calls of an archive that it is profiled with in the background, forgotten then; 0 = none are
    kept, and an archive without ``samples`` is not profiled."""
    adapt: bool = True
    """Change plans as the load changes, of models that have a profile."""
    warm_memory_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Memory in which workers of a model's likely plans are kept loaded and asleep, for a switch at once.

    None = an eighth of what is free, shared by all models; 0 = keep none.
    """
    policy: PolicyName = "eager"
    drain_s: Wait = 30.0
    """How long requests in hand may take to finish after SIGTERM."""
    tls_certificate: str | None = None
    """PEM file of the server's certificate and those between it and its root; None = no TLS."""
    tls_key: str | None = None
    """PEM file of its key, without a password."""
    tls_client_ca: str | None = None
    """PEM file of who signs clients' certificates; None = clients need none."""
    log_format: Literal["text", "json"] = "text"
    """Lines on stderr for people, or one JSON object each."""
    log_requests: bool = False
    """Whether each request that reached a model gets a line when it has ended."""
    tracing: str | None = None
    """URL of an OTLP receiver over HTTP, such as ``http://127.0.0.1:4318``, that traces are sent to."""
    trace_sampling: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of the requests that are traced; where a caller's trace says whether it is, that counts."""
    max_body_bytes: Positive = 64 << 20
    max_header_bytes: Positive = 16 << 10
    max_connections: Positive = 4096
    idle_timeout_s: Duration = 75.0
    """A connection with nothing to do is closed after this long."""
    header_timeout_s: Duration = 10.0
    """A client must have sent a request's head within this long from its first byte."""
    body_timeout_s: Duration = 30.0
    """A client that sends a body must make progress at least this often."""
    min_body_bytes_per_s: Annotated[int, msgspec.Meta(ge=0)] = 1024
    """A body must come at least this fast on average, once `body_timeout_s` has passed; 0 = at any rate."""
    item_memory_bytes: Positive = 1 << 30
    """Largest memory for the items of one model's requests; only what is used is taken."""

    def __post_init__(self) -> None:
        _check_cores(self.cores)
        _check_cores(self.head_cores)
        if self.tracing is not None and not self.tracing.startswith(("http://", "https://")):
            raise ValueError("tracing is the URL of an OTLP receiver, http://HOST:PORT")
        msgspec.structs.force_setattr(self, "cors_origins", _origins(self.cors_origins))
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key are of use only together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of ``partita.toml``."""

    server: ServerSettings = ServerSettings()
    model: dict[str, ModelSettings] = {}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``partita.toml``, and what a ``config.properties`` says of archives."""

    server: ServerSettings = ServerSettings()
    model: dict[str, ModelSettings] = {}
    archive_defaults: dict[str, dict[str, Any]] = {}
    """Keys of ``[model.NAME]`` for TorchServe archives, by name or ``*``, below what they say themselves."""

    def with_server(self, **changes: Any) -> "Settings":
        """Return the settings with these of ``[server]`` replaced, as given on a command line.

        None means not given. Raises `InvalidInput` as for a file.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        read = _read_server(given, where="command line: ")
        server = msgspec.structs.replace(self.server, **{name: getattr(read, name) for name in given})
        return msgspec.structs.replace(self, server=server)


def check_build(settings: Settings) -> None:
    """Raise `InvalidInput` for a setting that is known but cannot be obeyed, yet or for want of an extra."""
    server = settings.server
    if (server.grpc or server.grpc_management) is not None and importlib.util.find_spec("grpc") is None:
        raise MissingExtra(GRPC_EXTRA)
    if server.tracing is not None and importlib.util.find_spec("opentelemetry") is None:
        raise MissingExtra(TRACING_EXTRA)


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read ``partita.toml``, over what the environment says; None reads the environment alone.

    Raises `InvalidInput` for a file that is missing or not TOML, an unknown key, or a wrong value.
    """
    variables = _server_environment(os.environ if environ is None else environ)
    environment = _read_server(variables, where="environment PARTITA_*: ", strict=False)
    raw = {} if path is None else read_toml(path)
    settings = _read_all(raw, where=f"{path}: ")
    if path is not None:
        settings = _paths_beside(settings, path.absolute().parent)
    unset = {name: getattr(environment, name) for name in variables if name not in raw.get("server", {})}
    return msgspec.structs.replace(settings, server=msgspec.structs.replace(settings.server, **unset))


def load_model_settings(path: Path, name: str) -> ModelSettings:
    """Read the ``partita.toml`` of a model's own folder, which says nothing but ``[model.NAME]``.

    Raises `InvalidInput` as `load_settings` does.
    """
    raw = read_toml(path)
    if "server" in raw:
        raise InvalidInput(f"{path}: [server] belongs in the file given to --config, not in a model's folder")
    settings = _read_all(raw, where=f"{path}: ")
    if others := set(settings.model) - {name}:
        raise InvalidInput(f"{path}: [model.{min(others)}] is about another model than this folder's, {name}")
    own = settings.model.get(name, ModelSettings())
    return (
        own
        if own.samples is None
        else msgspec.structs.replace(own, samples=str(path.absolute().parent / own.samples))
    )


def default_config(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that ``PARTITA_CONFIG`` names, None if it names none."""
    given = (os.environ if environ is None else environ).get("PARTITA_CONFIG")
    return Path(given) if given else None


def torchserve_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that TorchServe's users set: ``TS_...``."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if name.startswith("TS_")}


def wants_colour(environ: Mapping[str, str] | None = None) -> bool:
    """Return False where ``NO_COLOR`` is set to anything but nothing (no-color.org)."""
    return not (os.environ if environ is None else environ).get("NO_COLOR")


def _read_all(raw: dict[str, Any], *, where: str) -> Settings:
    """Read each table by itself, so that a message can name it."""
    models = raw.get("model", {})
    read_table(_File, {**raw, "server": {}, "model": {}}, where=where)
    if not isinstance(models, dict):
        raise InvalidInput(f"{where}model: expected tables [model.NAME], got {models!r}")
    return Settings(
        server=_read_server(raw.get("server", {}), where=where),
        model={
            name: read_table(ModelSettings, table, where=where, section=("model", name))
            for name, table in models.items()
        },
    )


def _paths_beside(settings: Settings, folder: Path) -> Settings:
    """Return the settings with relative paths of models and other files taken from the folder of the file
    that names them.
    """
    models = {name: _beside(model, folder) for name, model in settings.model.items()}
    names = ("tls_certificate", "tls_key", "tls_client_ca", "model_store")
    given = {name: path for name in names if (path := getattr(settings.server, name)) is not None}
    server = msgspec.structs.replace(settings.server, **{n: str(folder / p) for n, p in given.items()})
    return msgspec.structs.replace(settings, server=server, model=models)


def _beside(model: ModelSettings, folder: Path) -> ModelSettings:
    given = {name: path for name in ("path", "samples") if (path := getattr(model, name)) is not None}
    return msgspec.structs.replace(model, **{name: str(folder / path) for name, path in given.items()})


def _read_server(table: Any, *, where: str, strict: bool = True) -> ServerSettings:
    if isinstance(table, dict):
        table = {name: _address(name, value, where) for name, value in table.items()}
    return read_table(ServerSettings, table, where=where, section=("server",), strict=strict)


def _address(name: str, value: Any, where: str) -> Any:
    """Return the address that a ``[server]`` value spells; any other value as it is."""
    if name not in _ADDRESSES or value is None or isinstance(value, Address):
        return value
    if value == "off":
        return None
    try:
        return Address.parse(str(value))
    except InvalidInput as error:
        raise InvalidInput(f"{where}[server] {name}: {error}") from error


def _server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ``[server]`` values that the environment sets.

    Other variables that begin so are left alone: Kubernetes adds ``PARTITA_PORT`` and more by itself for a
    service of that name.
    """
    names = [field.encode_name for field in msgspec.structs.fields(ServerSettings)]
    found = {name: environ.get(f"PARTITA_{name.upper()}") for name in names}
    if environ.get("TS_DISABLE_TOKEN_AUTHORIZATION", "").lower() == "true":  # TorchServe's word for it
        found["token_auth"] = found["token_auth"] or "false"
    return {name: value for name, value in found.items() if value}
