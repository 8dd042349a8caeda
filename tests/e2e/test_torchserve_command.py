"""``partita torchserve`` as a script of TorchServe's users calls it: started, asked, and stopped."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.cli.torchserve import PID_FILE, _spread, settings_for
from partita.settings import Settings
from partita.system.addresses import Address
from partita.system.process_times import started_ticks
from tests import archives
from tests.e2e.test_serve import until
from tests.unit.test_torchserve_config import archive

pytestmark = pytest.mark.e2e

PORTS = "".join(f"{name}_address=http://127.0.0.1:0\n" for name in ("inference", "management", "metrics"))
PORTS += "grpc_inference_port=0\ngrpc_management_port=0\n"


class Place:
    """A folder in which the command is called, with its own folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.store = folder / "store"
        self.store.mkdir()
        (folder / "config.properties").write_text(PORTS)
        self.said = folder / "said"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary), "PARTITA_TUNE": "never"}

    def call(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        """Call the command; what it and its server say goes to a file."""
        with self.said.open("a") as said:
            return subprocess.run(
                [sys.executable, "-m", "partita.cli", "torchserve", *argv],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                timeout=90,
                check=False,
            )

    def url(self, port: str) -> str:
        """Where a port is, which is said as soon as every model can answer."""
        until(lambda: re.search(rf" {port} on (\S+)", self.said.read_text()))
        return str(re.findall(rf" {port} on (\S+)", self.said.read_text())[-1])

    def ask(self, port: str, path: str, body: bytes | None = None, kind: str = "") -> tuple[int, bytes]:
        headers = {}
        if kind:
            keys = json.loads((self.folder / "key_file.json").read_text())
            headers = {"Authorization": f"Bearer {keys[kind]['key']}"}
        request = urllib.request.Request(self.url(port) + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.call("--stop")
    assert not (made.temporary / PID_FILE).exists()


def is_healthy(place: Place) -> bool:
    return place.ask("http", "/ping")[0] == 200


def test_a_script_starts_asks_and_stops_it(place: Place) -> None:
    archives.function_archive(place.store)
    archives.function_archive(place.folder, "other").rename(place.store / "other.mar")
    (place.folder / "log4j2.xml").write_text("<x/>")
    more = ["--ncs", "--log-config", "log4j2.xml", "--plugins-path", "plugins", "--workflow-store", "store"]
    models = ["--models", "loud=shout.mar", "other.mar"]
    started = place.call("--start", "--model-store", "store", *models, *more, "--json")
    assert started.returncode == 0, place.said.read_text()
    document = json.loads(started.stdout)
    assert document == {"status": "started", "pid": document["pid"]}
    assert (place.temporary / PID_FILE).read_text().splitlines()[0] == str(document["pid"])
    until(lambda: is_healthy(place))
    assert place.ask("http", "/predictions/loud", b"abc", "inference") == (200, b"ABC")
    assert place.ask("http", "/predictions/other", b"abc", "inference") == (200, b"ABC")
    assert place.ask("http", "/predictions/other", b"abc")[0] == 400, "tokens are on, as there"
    listed = json.loads(place.ask("management", "/models", None, "management")[1])["models"]
    assert [model["modelName"] for model in listed] == ["loud", "other"]
    assert "ts_inference_requests_total" in place.ask("metrics", "/metrics")[1].decode()

    said = place.said.read_text()
    for option in ("--ncs", "--log-config", "--plugins-path", "--workflow-store"):
        assert said.count(f"{option} changes nothing here") == 1
    again = place.call("--start", "--model-store", "store")
    assert again.returncode == 2
    assert f"process {document['pid']}" in place.said.read_text().splitlines()[-1]
    assert is_healthy(place)

    assert place.call("--stop").stdout == "The server has stopped.\n"
    assert started_ticks(document["pid"]) is None
    assert not (place.folder / "key_file.json").exists()
    assert list(place.temporary.iterdir()) == []
    stopped = place.call("--stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"status": "not running", "pid": None})


def test_in_the_foreground_it_is_this_process(place: Place) -> None:
    argv = [sys.executable, "-m", "partita.cli", "torchserve", "--foreground", "--model-store", "store"]
    with (
        place.said.open("a") as said,
        subprocess.Popen(argv, cwd=place.folder, env=place.environment, stderr=said) as process,
    ):
        try:
            until((place.temporary / PID_FILE).exists)
            assert (place.temporary / PID_FILE).read_text().split()[0] == str(process.pid)
            until(lambda: is_healthy(place))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


WRONG = {
    "two actions": (["--start", "--stop"], "one of --start, --stop"),
    "no store": (["--start"], "--model-store is missing"),
    "a store that is not there": (["--model-store", "none"], "there is no folder none"),
    "no configuration": (["--model-store", "store", "--ts-config", "none"], "none cannot be read"),
    "no such archive": (["--model-store", "store", "--models", "a.mar", "none.mar"], "no archive 'none.mar'"),
    "a path": (["--model-store", "store", "--models", "../store/a.mar"], "no archive '../store/a.mar'"),
    "a URL": (["--model-store", "store", "--models", "x=https://h/a.mar?x=1"], "allowed_urls is empty"),
    "too much": (["--model-store", "store", "a.mar"], "unexpected extra argument"),
    "an option of nobody's": (["--start", "--model-stor", "x"], "No such option"),
}


@pytest.mark.parametrize(("argv", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_starts_nothing_and_is_said(argv: list[str], says: str, place: Place) -> None:
    archive(place.store / "a.mar", "a")
    done = place.call(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in place.said.read_text()


def test_a_port_that_is_taken_ends_the_start_with_the_reason(place: Place) -> None:
    assert place.call("--start", "--model-store", "store").returncode == 0
    taken = place.url("http")
    (place.folder / "config.properties").write_text(f"inference_address={taken}\n")
    place.call("--stop")
    address = Address.parse(taken.removeprefix("http://"))
    with socket.create_server((address.host, address.port)):
        done = place.call("--start", "--model-store", "store")
    assert done.returncode == 2
    assert str(address.port) in place.said.read_text().splitlines()[-1]


def test_an_allowed_url_is_fetched_and_served(place: Place) -> None:
    archives.function_archive(place.folder)
    with (place.folder / "config.properties").open("a") as file:
        file.write("allowed_urls=file:///.*\ndisable_token_authorization=true\n")
    url = f"file://{place.folder}/shout.mar"
    assert place.call("--start", "--model-store", "store", "--models", f"far={url}").returncode == 0
    until(lambda: is_healthy(place))
    assert place.ask("http", "/predictions/far", b"abc") == (200, b"ABC")


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        ("--models a b --ncs", "--models a --models b --ncs"),
        ("--models=a b", "--models=a --models b"),
        ("--ncs --models a", "--ncs --models a"),
        ("--models", "--models"),
        ("--ts-config f a", "--ts-config f a"),
    ],
)
def test_several_models_follow_one_option(given: str, spread: str) -> None:
    assert _spread(given.split()) == spread.split()


def settings_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Settings:
    (folder / "store").mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    return settings_for(**{"model_store": Path("store"), **given})


def test_defaults_are_torchserves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc")
    server = settings_in(tmp_path, monkeypatch).server
    assert (server.http, server.management) == (Address("127.0.0.1", 8080), Address("127.0.0.1", 8081))
    assert (server.grpc, server.grpc_management) == (Address("127.0.0.1", 7070), Address("127.0.0.1", 7071))
    assert (server.token_auth, server.inference_token, server.enable_model_api) == (True, True, False)
    server = settings_in(tmp_path, monkeypatch, disable_token_auth=True, enable_model_api=True).server
    assert (server.token_auth, server.inference_token, server.enable_model_api) == (False, False, True)


def test_configurations_are_looked_for_as_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, port in (("config.properties", 1), ("given", 2), ("variable", 3)):
        (tmp_path / name).write_text(f"inference_address=http://127.0.0.1:{port}\nmodel_store=store\n")
    seen = [settings_in(tmp_path, monkeypatch, model_store=None).server.http]
    seen.append(settings_in(tmp_path, monkeypatch, ts_config=Path("given")).server.http)
    monkeypatch.setenv("TS_CONFIG_FILE", "variable")
    seen.append(settings_in(tmp_path, monkeypatch, ts_config=Path("given")).server.http)
    assert [address.port for address in seen if address is not None] == [1, 2, 3]
