"""partita.toml, the environment, and what is said about mistakes."""

from pathlib import Path

import pytest

from partita.core.errors import InvalidInput
from partita.settings import (
    InputSettings,
    InstanceSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    check_build,
    default_config,
    load_model_settings,
    load_settings,
    wants_colour,
)
from partita.system.addresses import Address
from partita.system.artefacts import cache_dir

FULL = """
[server]
http = "0.0.0.0:9000"
management = "[::1]:9001"
metrics = "off"
cores = "0-3"
head_cores = "4"
tune = "never"
policy = "aggregate"
drain_s = 5
max_body_bytes = 1000

[model.digits]
path = "models/digits"
version = 2
max_batch = 16
batch_timeout_ms = 1.5
queue_size = 10
deadline_ms = 100
execution_limit_s = 3
inputs = { x = { shape = [-1, 64], datatype = "FP32" } }
dimensions = { tokens = 128 }
instances = [ { cores = "0-3", batch = 8 }, { threads = 2, socket = 1, batch = 4 } ]
options = { graph_optimization = "all", arena = true }
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "partita.toml"


def _load(toml: Path, text: str, **environ: str) -> Settings:
    toml.write_text(text)
    return load_settings(toml, environ)


def test_defaults() -> None:
    settings = load_settings(None, {})
    assert settings == Settings()
    assert str(settings.server.http) == "127.0.0.1:8080"
    assert str(settings.server.management) == "127.0.0.1:8081"
    assert str(settings.server.metrics) == "127.0.0.1:8082"
    assert settings.server.grpc is None
    check_build(settings)
    model = ModelSettings()
    assert (model.max_batch, model.queue_size, model.execution_limit_s, model.load_limit_s) == (
        32,
        1024,
        60,
        120,
    )


def test_everything_at_once(toml: Path) -> None:
    settings = _load(toml, FULL)
    server = settings.server
    assert server.http == Address("0.0.0.0", 9000)
    assert server.management == Address("::1", 9001)
    assert server.metrics is None
    assert (server.cores, server.head_cores, server.tune, server.drain_s) == ("0-3", "4", "never", 5.0)
    digits = settings.model["digits"]
    assert digits.path == str(toml.parent / "models/digits")
    assert digits.inputs == {"x": InputSettings(shape=(-1, 64), datatype="FP32")}
    assert digits.instances == (
        InstanceSettings(cores="0-3", batch=8),
        InstanceSettings(threads=2, socket=1, batch=4),
    )
    assert digits.options == {"graph_optimization": "all", "arena": True}


def test_batch_timeout_follows_the_policy() -> None:
    assert ModelSettings().batch_timeout_s("eager") == 0.0
    assert ModelSettings().batch_timeout_s("aggregate") == 0.010
    assert ModelSettings(policy="eager").batch_timeout_s("aggregate") == 0.0
    assert ModelSettings(batch_timeout_ms=3.0).batch_timeout_s("eager") == 0.003


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[srver]", r"unknown key 'srver'; did you mean 'server'\?"),
        ("[server]\nhtp = 'x'", r"\[server\] unknown key 'htp'; did you mean 'http'\?"),
        ("[server]\nzzzz = 1", r"\[server\] unknown key 'zzzz'; there are http, management"),
        ("[model.a]\nmax_bach = 3", r"\[model\.a\] unknown key 'max_bach'; did you mean 'max_batch'\?"),
        ("[model.a.inputs.x]\nshap = [1]", r"\[model\.a\.inputs\.x\] unknown key 'shap'"),
        ("[model.a]\ninstances = [{core = '1'}]", r"\[model\.a\.instances\.0\] unknown key 'core'"),
        (
            "[model.a]\nmax_batch = '4'",
            r"\[model\.a\] max_batch: expected int, got str \(e\.g\. max_batch = 32\)",
        ),
        ("[model.a]\nmax_batch = 0", r"\[model\.a\] max_batch: expected int >= 1"),
        ("[model.a]\npolicy = 'lazy'", r"policy: invalid enum value 'lazy' \(one of eager, aggregate\)"),
        ("[model.a]\ninstances = [{batch = 2}]", r'either cores = "0-3" or threads = 4'),
        ("[model.a]\ninstances = [{cores = '1', socket = 0}]", "leave socket out"),
        ("[model.a.inputs.x]\nshape = [-1]", r"inputs: table missing required field datatype"),
        (
            "[server]\ndrain_s = 'x'",
            r"\[server\] drain_s: expected float, got str \(e\.g\. drain_s = 30\.0\)",
        ),
        ("[server]\nhttp = 'x'", r"\[server\] http: 'x' is not HOST:PORT; write e\.g\. 127\.0\.0\.1:8080"),
        ("[server]\nhttp = 80", r"\[server\] http: '80' is not HOST:PORT"),
        ("[server]\ncores = '3-1'", r"\[server\] cores '3-1': the range '3-1' runs backwards"),
        ("[server]\ncores = 0", r"cores must be at least 1"),
        ("server = 3", r"\[server\] expected table, got int"),
        ("model = 3", r"model: expected tables \[model\.NAME\], got 3"),
        ("[model]\na = 3", r"\[model\.a\] expected table, got int"),
        ("x =", r"is not TOML"),
    ],
)
def test_mistakes_say_where_and_what_would_be_right(toml: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        _load(toml, text)
    assert str(error.value).startswith(str(toml))


def test_a_missing_file(toml: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        load_settings(toml, {})


def test_environment_is_below_the_file(toml: Path) -> None:
    settings = _load(
        toml,
        "[server]\nhttp = '127.0.0.1:1'",
        PARTITA_HTTP="127.0.0.1:2",
        PARTITA_DRAIN_S="7",
        PARTITA_GRPC="off",
    )
    assert settings.server.http == Address("127.0.0.1", 1)
    assert settings.server.drain_s == 7.0
    assert settings.server.grpc is None


def test_environment_numbers_are_checked() -> None:
    with pytest.raises(InvalidInput, match=r"environment PARTITA_\*: \[server\] drain_s"):
        load_settings(None, {"PARTITA_DRAIN_S": "soon"})


def test_torchserves_word_for_no_tokens_is_below_ours_and_the_file(toml: Path) -> None:
    theirs = {"TS_DISABLE_TOKEN_AUTHORIZATION": "True"}
    assert load_settings(None, theirs).server.token_auth is False
    assert load_settings(None, {"TS_DISABLE_TOKEN_AUTHORIZATION": "false"}).server.token_auth is True
    assert load_settings(None, {**theirs, "PARTITA_TOKEN_AUTH": "true"}).server.token_auth is True
    assert _load(toml, "[server]\ntoken_auth = true", **theirs).server.token_auth is True


def test_what_kubernetes_injects_is_left_alone() -> None:
    injected = {"PARTITA_PORT": "tcp://10.0.0.1:8080", "PARTITA_SERVICE_HOST": "10.0.0.1"}
    assert load_settings(None, injected) == Settings()


def test_the_command_line_is_above_all() -> None:
    settings = load_settings(None, {"PARTITA_HTTP": "127.0.0.1:2"})
    changed = settings.with_server(http="127.0.0.1:3", cores="1", drain_s=None, metrics="off")
    assert changed.server.http == Address("127.0.0.1", 3)
    assert changed.server.metrics is None
    assert changed.server.cores == "1"
    assert changed.server.management == ServerSettings().management
    assert settings.with_server() == settings
    with pytest.raises(InvalidInput, match="command line"):
        settings.with_server(http="nowhere")


@pytest.mark.parametrize("change", [{"tune": "later"}, {"tune_slowdown": 0.9}])
def test_tuning_is_asked_for_by_what_there_is(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=min(change)):
        Settings().with_server(**change)
    assert Settings().with_server(tune="background").server.tune_slowdown == 1.5


def test_a_folders_own_file_speaks_of_its_model_only(toml: Path) -> None:
    toml.write_text("[model.digits]\nmax_batch = 4")
    assert load_model_settings(toml, "digits").max_batch == 4
    with pytest.raises(InvalidInput, match="another model"):
        load_model_settings(toml, "letters")
    toml.write_text("[server]\ncores = 1")
    with pytest.raises(InvalidInput, match=r"\[server\] belongs in the file given to --config"):
        load_model_settings(toml, "digits")


def test_places() -> None:
    assert cache_dir({"PARTITA_CACHE_DIR": "/a/b"}) == Path("/a/b")
    assert cache_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/partita")
    assert cache_dir({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "partita"
    assert default_config({"PARTITA_CONFIG": "x.toml"}) == Path("x.toml")
    assert default_config({}) is None
    assert wants_colour({"NO_COLOR": ""})
    assert not wants_colour({"NO_COLOR": "1"})


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a.b:1", "a.b", 1),
        (":0", "127.0.0.1", 0),
        ("[::1]:65535", "::1", 65535),
        (" 0.0.0.0:80 ", "0.0.0.0", 80),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert address == Address(host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "x", "8080", "::1:80", "a:65536", "a:-1", "a:", "a:²"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        Address.parse(text)


def test_loopback() -> None:
    assert Address("127.9.9.9", 1).is_loopback
    assert Address("::1", 1).is_loopback
    assert Address("localhost", 1).is_loopback
    assert not Address("0.0.0.0", 1).is_loopback
    assert not Address("example.org", 1).is_loopback
