"""Loading, reloading and unloading models while others ask, through the real clients."""

import json
import os
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from partita.core.errors import ModelNotFound, RequestError
from partita.embedded import Server
from partita.settings import InstanceSettings, ModelSettings, ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.e2e.test_serve import Serve, open_gate, until
from tests.engine_driver import HOLD, make_gate
from tests.raw_client import RawClient, infer, request

triton = pytest.importorskip("tritonclient.http")
triton_grpc = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore::DeprecationWarning:gevent")]

LOCAL = Address("127.0.0.1", 0)
VERSIONED = '''
import os

class Versioned:
    """y = the version's number; loading waits for the gate where there is one."""

    inputs = {{"x": {{"shape": [-1, 2], "datatype": "FP32"}}}}
    outputs = {{"y": {{"shape": [-1, 2], "datatype": "FP32"}}}}

    def load(self, context):
        folder = os.path.dirname(os.path.abspath(__file__))
        if os.path.exists(os.path.join(folder, "load_gate")):
            open(os.path.join(folder, "load_gate")).read()
        {at_load}

    def infer(self, batch):
        if {hold} in batch["x"][:, 1].astype(int):
            open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gate")).read()
        return {{"y": 0 * batch["x"] + {version}}}
'''


def write_version(store: Path, version: int, *, at_load: str = "pass", gate: bool = False) -> Path:
    folder = store / "m" / str(version)
    folder.mkdir(parents=True)
    source = dedent(VERSIONED).format(version=version, at_load=at_load, hold=HOLD)
    (folder / "handler.py").write_text(source, encoding="utf-8")
    if gate:
        os.mkfifo(folder / "load_gate")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A repository of one model with one version, and beside it what must never be touched."""
    made = tmp_path / "store"
    write_version(made, 1)
    return made


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    settings = Settings(server=ServerSettings(http=LOCAL, metrics=LOCAL, grpc=LOCAL, management=LOCAL))
    with Server([store], cores=1, tune="never", settings=settings, ports=True) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def connected(server: Server, door: str) -> Iterator[Any]:
    """One of the two clients, which have the same methods for this. Each belongs to its thread."""
    kind = triton if door == "http" else triton_grpc
    made = kind.InferenceServerClient(str(server.head.ports[door]))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def client(server: Server, door: str) -> Iterator[Any]:
    with connected(server, door) as made:
        yield made


def load(server: Server, door: str) -> None:
    with connected(server, door) as client:
        client.load_model("m", headers=token(server))


def token(server: Server) -> dict[str, str]:
    keys = server.head.access.keys
    assert keys is not None
    return {"authorization": f"Bearer {keys.current['management'].value}"}


def answer(server: Server, what: int = 0) -> int:
    return int(server.predict("m", np.array([[0, what]], np.float32))["y"][0, 0])


def states(client: Any) -> dict[str, tuple[str, str]]:
    index = client.get_model_repository_index()
    if isinstance(index, list):
        return {m["name"]: (m["version"], m["state"]) for m in index}
    return {m.name: (m.version, m.state) for m in index.models}


def in_thread(call: Callable[[], Any]) -> "Future[Any]":
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def open_load_gate(folder: Path) -> Callable[[], None]:
    (folder / "gate").unlink(missing_ok=True)
    (folder / "gate").symlink_to("load_gate")
    return open_gate(folder)


def test_a_new_version_serves_once_it_is_ready_and_the_old_one_until_then(
    server: Server, store: Path, door: str, client: Any
) -> None:
    folder = write_version(store, 2, gate=True)
    assert answer(server) == 1
    loading = in_thread(lambda: load(server, door))
    let_go = open_load_gate(folder)
    assert [answer(server) for _ in range(3)] == [1, 1, 1]
    assert server.head.engine.is_ready
    let_go()
    loading.result(30)
    assert answer(server) == 2
    assert states(client) == {"m": ("2", "READY")}


def test_what_the_old_version_has_taken_it_finishes(server: Server, store: Path, client: Any) -> None:
    make_gate(store / "m" / "1")
    held = in_thread(lambda: answer(server, HOLD))
    let_go = open_gate(store / "m" / "1")
    write_version(store, 2)
    client.load_model("m", headers=token(server))
    newer = in_thread(lambda: answer(server))  # waits for its turn on the one core
    assert states(client) == {"m": ("2", "READY")}
    assert not held.done()
    let_go()
    assert held.result(30) == 1
    assert newer.result(30) == 2


def test_a_client_that_keeps_asking_the_same_on_one_connection_gets_the_new_version(
    server: Server, store: Path, client: Any
) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [tensor]}).encode()
    ask = infer("m", text + bytes(8), header=len(text))
    with RawClient(server.url()) as raw:
        assert [raw.ask(ask)[1]["outputs"][0]["data"][0] for _ in range(4)] == [1.0] * 4
        write_version(store, 2)
        client.load_model("m", headers=token(server))
        assert [raw.ask(ask)[1]["outputs"][0]["data"][0] for _ in range(4)] == [2.0] * 4
        client.unload_model("m", headers=token(server))
        assert [raw.ask(ask)[0] for _ in range(2)] == [404, 404]


def test_a_load_that_fails_changes_nothing(server: Server, store: Path, client: Any) -> None:
    before = server.head.engine.service("m")
    write_version(store, 2, at_load="raise ValueError('no such weights')")
    with pytest.raises(utils.InferenceServerException) as caught:
        client.load_model("m", headers=token(server))
    assert "no such weights" in caught.value.message()
    assert server.head.engine.service("m") is before
    assert server.head.engine.everything == [before]
    assert answer(server) == 1
    assert states(client) == {"m": ("1", "READY")}


def test_unload_and_load_again_by_version(server: Server, store: Path, client: Any) -> None:
    write_version(store, 2)
    client.unload_model("m", headers=token(server))
    assert not client.is_model_ready("m")
    assert states(client) == {"m": ("2", "UNAVAILABLE")}
    with pytest.raises(ModelNotFound):
        answer(server)
    with pytest.raises(utils.InferenceServerException) as caught:
        client.unload_model("m", headers=token(server))
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")
    config = json.dumps({"version_policy": {"specific": {"versions": [1]}}})
    client.load_model("m", headers=token(server), config=config)
    assert answer(server) == 1
    with pytest.raises(utils.InferenceServerException) as caught:
        client.load_model("other", headers=token(server))
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")


def test_files_that_a_client_sends_are_served_and_then_gone(
    server: Server, tmp_path: Path, client: Any
) -> None:
    content = models.linear(tmp_path / "linear.onnx", outputs=5).read_bytes()
    folders = set(Path(tempfile.gettempdir()).glob("partita-*"))
    client.load_model("sent", headers=token(server), config="{}", files={"file:3/model.onnx": content})
    y = server.predict("sent", np.ones((2, 4), np.float32))["y"]
    assert y.shape == (2, 5)
    assert states(client)["sent"] == ("3", "READY")
    client.unload_model("sent", headers=token(server))
    assert set(Path(tempfile.gettempdir()).glob("partita-*")) == folders
    assert "sent" not in states(client)


REFUSED = {
    "a way out": ("{}", "../../m/9/model.onnx", "expected VERSION/NAME"),
    "an absolute path": ("{}", "/etc/passwd", "expected VERSION/NAME"),
    "code": ("{}", "1/handler.py", "code and settings are not taken"),
    "no config": (None, "1/model.onnx", "files need a config"),
    "a config that is none": ("[]", "1/model.onnx", "config"),
    "an unknown backend": ('{"backend": "magic"}', "1/model.onnx", "backend 'magic' is not one of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_and_configs_that_are_refused(server: Server, tmp_path: Path, case: str) -> None:
    config, name, said = REFUSED[case]
    before = sorted(tmp_path.rglob("*"))
    parameters = {f"file:{name}": "AAAA", **({"config": config} if config is not None else {})}
    body = json.dumps({"parameters": parameters}).encode()
    bearer = f"Authorization: {token(server)['authorization']}"
    with RawClient(server.url()) as raw:
        load = request("/v2/repository/models/sent/load", body, bearer)
        status, document = raw.ask(load.replace(b"Host: h", b"Host: localhost"))
    assert (status, said in document["error"]) == (400, True), document
    assert sorted(tmp_path.rglob("*")) == before


# --- who may --------------------------------------------------------------------------------------


def ask(url: str, path: str, host: str, *fields: str, method: str = "POST") -> tuple[int, bytes]:
    with RawClient(url) as raw:
        raw.send(request(path, b"", *fields, method=method).replace(b"Host: h", f"Host: {host}".encode()))
        status, _, body = raw.answer()
    return status, body


@pytest.mark.parametrize("port", ["http", "management"])
def test_changes_need_the_token_and_a_name_of_ours(server: Server, port: str) -> None:
    load, good = "/v2/repository/models/m/load", f"Authorization: {token(server)['authorization']}"
    url = server.url(port)
    before = server.head.engine.service("m")
    assert ask(url, load, "localhost")[0] == 403
    assert ask(url, load, "localhost", "Authorization: Bearer wrong")[0] == 403
    assert ask(url, load, "localhost", good.replace("Bearer", "Basic"))[0] == 403
    status, body = ask(url, load, "evil.example:8080", good)
    assert (status, b"allowed_hosts" in body) == (403, True)
    assert ask(url, "/v2/repository/models/m/unload", "127.0.0.1")[0] == 403
    assert server.head.engine.service("m") is before
    for host in ("localhost:1", "127.0.0.1:8080", "[::1]:8080"):
        assert ask(url, load, host, good) == (200, b"")
    assert server.head.engine.service("m") is not before


def test_over_grpc_changes_need_the_token_too(server: Server) -> None:
    client = triton_grpc.InferenceServerClient(str(server.head.ports["grpc"]))
    for headers in (None, {"authorization": "Bearer wrong"}):
        with pytest.raises(utils.InferenceServerException) as caught:
            client.unload_model("m", headers=headers)
        assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
    client.close()
    assert answer(server) == 1


def test_a_token_is_renewed_with_the_api_key_and_the_old_one_is_good_no_longer(server: Server) -> None:
    keys, url, old = server.head.access.keys, server.url("management"), token(server)["authorization"]
    assert keys is not None
    renew, unload = "/token?type=management", "/v2/repository/models/m/unload"
    assert ask(url, renew, "localhost", f"Authorization: {old}", method="GET")[0] == 400
    api = f"Authorization: Bearer {keys.api.value}"
    assert ask(url, "/token?type=other", "localhost", api, method="GET")[0] == 400
    status, body = ask(url, renew, "localhost", api, method="GET")
    assert status == 200
    assert ask(url, unload, "localhost", f"Authorization: {old}")[0] == 403
    new = json.loads(body)["management"]["key"]
    assert ask(url, unload, "localhost", f"Authorization: Bearer {new}")[0] == 200


def test_without_a_management_port_nothing_can_be_changed(store: Path) -> None:
    settings = Settings(server=ServerSettings(http=LOCAL, metrics=None, management=None, token_auth=False))
    with Server([store], cores=1, tune="never", settings=settings, ports=True) as server:
        assert ask(server.url(), "/v2/repository/models/m/unload", "localhost")[0] == 404
        assert ask(server.url(), "/v2/repository/index", "localhost")[0] == 200


def test_serve_writes_its_keys_for_its_owner_alone_and_removes_them(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ports = ["--http", "127.0.0.1:0", "--metrics", "off", "--management", "127.0.0.1:0"]
    config = tmp_path / "partita.toml"
    config.write_text(f'[server]\nkey_file = "{file}"\n')
    with Serve(str(store), "--config", str(config), ports=ports) as server:
        url = "http://" + server.ready()["ports"]["management"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        document = json.loads(file.read_text())
        assert set(document) == {"management", "inference", "API"}
        bearer = f"Authorization: Bearer {document['management']['key']}"
        assert ask(url, "/v2/repository/models/m/load", "localhost", bearer) == (200, b"")
        os.kill(server.pid, 15)
        assert server.end()[0] == 0
    assert not file.exists()
    with Serve(str(store), "--disable-token-auth", ports=ports) as server:
        url = "http://" + server.ready()["ports"]["management"]
        assert ask(url, "/v2/repository/models/m/load", "localhost") == (200, b"")
        assert ask(url, "/v2/repository/models/m/load", "evil.example")[0] == 403


# --- under load -----------------------------------------------------------------------------------


def test_reloads_under_load_lose_no_request(server: Server) -> None:
    client = triton.InferenceServerClient(str(server.head.ports["http"]))
    stop = threading.Event()
    counts = [0, 0]

    def keep_asking(which: int) -> None:
        while not stop.is_set():
            assert answer(server) == 1
            counts[which] += 1

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(keep_asking, which) for which in range(2)]
        try:
            for _ in range(3):
                client.load_model("m", headers=token(server))
        finally:
            stop.set()
        for one in asking:
            one.result(30)
    assert min(counts) > 0
    client.close()


def test_changes_at_once_end_in_order(server: Server, store: Path) -> None:
    """Several clients load and unload one model while others ask it: nothing hangs, nothing is left over."""
    write_version(store, 2)
    outcomes: Counter[str] = Counter()

    def change(which: int) -> None:
        with connected(server, "http") as client:
            for step in range(4):
                try:
                    if (step + which) % 4 == 3:
                        client.unload_model("m", headers=token(server))
                    else:
                        client.load_model("m", headers=token(server))
                    outcomes["changed"] += 1
                except utils.InferenceServerException as error:
                    outcomes[error.status()] += 1

    def ask_on() -> None:
        while not stop.is_set():
            try:
                assert answer(server) == 2
                outcomes["answered"] += 1
            except RequestError as error:
                outcomes[error.code] += 1
                time.sleep(0.001)  # not to keep the core from those who load

    stop = threading.Event()
    with connected(server, "http") as client:
        client.load_model("m", headers=token(server))
    with ThreadPoolExecutor(5) as pool:
        changing = [pool.submit(change, which) for which in range(3)]
        asking = [pool.submit(ask_on) for _ in range(2)]
        try:
            for one in changing:
                one.result(60)
        finally:
            stop.set()
        for one in asking:
            one.result(30)
    load(server, "http")
    assert answer(server) == 2
    until(lambda: len(server.head.engine.everything) == 1)
    server.head.engine.check()
    assert set(outcomes) <= {"changed", "answered", "404", "model_not_found", "shutting_down"}
    assert outcomes["changed"] > 6
    assert outcomes["answered"] > 0


def test_what_was_counted_stays_counted_when_a_model_is_replaced_or_unloaded(
    server: Server, store: Path
) -> None:
    def counted() -> dict[str, float]:
        _, body = ask(server.url("metrics"), "/metrics", "localhost", method="GET")
        return {
            sample.labels["version"]: sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
            if sample.name == "partita_requests_total" and sample.labels["outcome"] == "ok"
        }

    for _ in range(3):
        answer(server)
    assert counted() == {"1": 3.0}
    load(server, "http")
    assert counted() == {"1": 3.0}
    answer(server)
    write_version(store, 2)
    load(server, "http")
    answer(server)
    assert counted() == {"1": 4.0, "2": 1.0}
    with connected(server, "http") as client:
        client.unload_model("m", headers=token(server))
    assert counted() == {"1": 4.0, "2": 1.0}


def test_a_server_that_stops_gives_up_what_it_loads(store: Path) -> None:
    settings = Settings(server=ServerSettings(http=LOCAL, metrics=None, management=LOCAL))
    server = Server([store], cores=1, tune="never", settings=settings, ports=True)
    server.start()
    folder = write_version(store, 2, gate=True)
    loading = in_thread(lambda: load(server, "http"))
    open_load_gate(folder)
    began_s = time.monotonic()
    server.stop()
    assert time.monotonic() - began_s < 10.0
    with pytest.raises(Exception):  # noqa: B017, PT011  whatever a client makes of a connection that ends
        loading.result(30)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to lose")
def test_a_reload_keeps_the_cores_that_the_plan_leaves_free(store: Path) -> None:
    one = InstanceSettings(threads=1, batch=4)
    given = Settings(
        server=ServerSettings(http=LOCAL, management=LOCAL, adapt=False),
        model={"m": ModelSettings(instances=(one,))},
    )
    with Server([store], cores=2, tune="never", settings=given, ports=True) as server:
        engine = server.head.engine
        before = engine.deployment(engine.service("m"))
        assert (len(before.plan.instances[0].cores), len(before.cores)) == (1, 2)
        load(server, "http")
        after = engine.deployment(engine.service("m"))
        assert after is not before
        assert after.cores == before.cores
