"""TorchServe's `config.properties` and `--models`, as our settings."""

import json
import logging
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from partita.catalogue import Catalogue
from partita.cli.app import cli
from partita.core.errors import InvalidInput
from partita.settings import ModelSettings, ServerSettings, Settings
from partita.sources import find_all
from partita.system.addresses import Address
from partita.torchserve_config import read_properties, with_models, with_properties

PROPERTIES = """
# a comment
inference_address=http://0.0.0.0:9080
management_address = http://127.0.0.1:9081
grpc_inference_port=7070
grpc_management_address=127.0.0.2
model_store=store
load_models=a.mar,other=b.mar
job_queue_size: 7
default_workers_per_model=2
max_request_size=1000
max_response_size=2000
allowed_urls=https://one/.*,https://two/.*
install_py_dep_per_model=true
disable_token_authorization=true
enable_model_api=true
service_envelope=json
number_of_netty_threads=4
no_such_key=1
models={\\
  "a": {"1.0": {"defaultVersion": true, "marName": "a.mar", "batchSize": 4, "maxBatchDelay": 3, \\
                "minWorkers": 1, "maxWorkers": 3}}}
"""


def archive(place: Path, name: str, yaml: str = "") -> None:
    model = {"modelName": name, "handler": "h.py", "modelVersion": "2.0"} | (
        {"configFile": "c.yaml"} if yaml else {}
    )
    with zipfile.ZipFile(place, "w") as file:
        file.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
        file.writestr("h.py", "")
        file.writestr("c.yaml", yaml)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    archive(tmp_path / "store" / "a.mar", "a", "batchSize: 16\n")
    archive(tmp_path / "store" / "b.mar", "b")
    (tmp_path / "config.properties").write_text(PROPERTIES)
    return tmp_path


def read(place: Path, settings: Settings | None = None, **environ: str) -> Settings:
    return with_properties(settings or Settings(), place / "config.properties", environ=environ)


def test_keys_stand_for_ours(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        server = read(place).server
    assert (server.http, server.management) == (Address("0.0.0.0", 9080), Address("127.0.0.1", 9081))
    assert (server.grpc, server.grpc_management) == (Address("127.0.0.1", 7070), Address("127.0.0.2", 7071))
    assert server.model_store == str(place / "store")
    assert (server.max_body_bytes, server.requirements) == (1000, "install")
    assert server.allowed_urls == ("https://one/.*", "https://two/.*")
    assert (server.token_auth, server.enable_model_api) == (False, True)
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2
    assert any("no_such_key is not known" in text for text in warned)
    assert any("number_of_netty_threads changes nothing" in text for text in warned)


def test_what_models_say_to_no_effect_is_warned_of(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (place / "config.properties").open("a") as file:
        file.write('models={"a": {"1.0": {"marName": "a.mar", "deviceType": "gpu", "batch_size": 2}}}\n')
    with caplog.at_level(logging.WARNING):
        read(place)
    text = caplog.text
    assert "models: a: deviceType = 'gpu' changes nothing here: archives are executed on the CPU" in text
    assert "batch_size is no setting that is known; did you mean batchSize?" in text


def test_models_get_what_is_said_of_all_of_one_and_by_themselves(place: Path) -> None:
    settings = read(place)
    found = {source.name: source for source in find_all((), settings)}
    assert sorted(found) == ["a", "other"]
    a, other = found["a"].settings, found["other"].settings
    assert (a.max_batch, a.batch_timeout_ms) == (16, 3)  # the archive's own goes before the file
    assert (a.min_workers, a.max_workers, a.queue_size) == (1, 3, 7)
    assert (other.min_workers, other.max_workers, other.queue_size) == (2, 2, 7)
    assert other.options == {"envelope": "json"}
    assert (a.max_output_bytes, other.max_output_bytes) == (2000, 2000)
    later = Catalogue(paths=(), settings=settings).find("b.mar", {"max_batch": 2})
    assert (later.settings.max_batch, later.settings.queue_size) == (2, 7)


def test_what_is_said_elsewhere_goes_before_the_file(place: Path) -> None:
    mine = Settings(
        server=ServerSettings(http=Address("127.0.0.1", 1)), model={"a": ModelSettings(queue_size=5)}
    )
    settings = read(place, mine)
    assert settings.server.http == Address("127.0.0.1", 1)
    assert next(s for s in find_all((), settings) if s.name == "a").settings.queue_size == 5


def test_variables_go_before_the_file_where_it_says_so(place: Path) -> None:
    assert read(place, TS_MAX_REQUEST_SIZE="5").server.max_body_bytes == 1000
    with (place / "config.properties").open("a") as file:
        file.write("enable_envvars_config=true\n")
    assert read(place, TS_MAX_REQUEST_SIZE="5").server.max_body_bytes == 5


WRONG = [
    "inference_address=ftp://x",
    "max_request_size=many",
    "disable_token_authorization=maybe",
    "models={",
    'models={"a": {"1.0": {"batchSize": "x"}}}',
    "keystore=a.jks",
    "grpc_inference_port=x",
    "grpc_management_port=-1",
    "load_models=none.mar",
    "load_models=../a.mar",
    "private_key_file=key.pem",
]


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_named(line: str, place: Path) -> None:
    (place / "config.properties").write_text(f"model_store=store\n{line}\n")
    with pytest.raises(InvalidInput):
        read(place)


def test_models_of_the_store(place: Path) -> None:
    store = Settings(server=ServerSettings(model_store=str(place / "store")))
    assert sorted(with_models(store, ("all",)).model) == ["a", "b"]
    assert sorted(with_models(store, ("x=a.mar", "b")).model) == ["b", "x"]
    assert with_models(store, ("none",)) == store
    with pytest.raises(InvalidInput, match="allowed_urls is empty"):
        with_models(store, ("https://host/a.mar?x=1",))
    with pytest.raises(InvalidInput, match="no model store"):
        with_models(Settings(), ("all",))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_properties(tmp_path / "none")


def test_the_command_takes_them(place: Path) -> None:
    config = place / "config.properties"
    config.write_text("model_store=store\n")
    done = CliRunner().invoke(cli, ["serve", "--ts-config", str(config), "--models", "never.mar"])
    assert isinstance(done.exception, InvalidInput)  # which the command turns into status 2
    assert "never.mar" in str(done.exception)
