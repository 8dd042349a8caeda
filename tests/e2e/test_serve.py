"""``partita serve`` as a process of its own: its start, its signals, its end, and what is left of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import models
from tests.engine_driver import HOLD, LIMIT_S, RAISE, executed, make_gate, tricky, workers_among
from tests.raw_client import RawClient, infer, request

pytestmark = pytest.mark.e2e

PORTS = ["--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--management", "off"]
MARK = "MARK_OF_THE_TEST"
READY = request("/v2/health/ready", method="GET")


class Serve:
    """A running ``partita serve --json``. A mark in its environment tells its workers too."""

    def __init__(self, *argv: str, ports: list[str] = PORTS, cores: str = "1") -> None:
        command = [sys.executable, "-m", "partita.cli", "serve", *argv, "--tune", "never", "--json", *ports]
        self.process = subprocess.Popen(
            [*command, "--cores", cores],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: (mark := uuid4().hex)},
        )
        self.pid = self.process.pid
        self._mark = f"{MARK}={mark}".encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=LIMIT_S)

    def ready(self) -> dict[str, Any]:
        """Wait for the document that says that everything can answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()
        document: dict[str, Any] = json.loads(line)
        return document

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code, stdout and stderr. None of its processes may be left."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert self.pids() == [], err
        return self.process.returncode, out, err

    def pids(self) -> list[int]:
        """All its live processes."""
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal() and self._is_ours(p)]

    def workers(self) -> list[int]:
        """Those of them that execute, or are about to: neither the head nor spares."""
        return [pid for pid in workers_among(self.pids()) if pid != self.pid]

    def _is_ours(self, process: Path) -> bool:
        try:
            return self._mark in (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is somebody else's
            return False


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.linear(tmp_path_factory.mktemp("models") / "linear.onnx")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder of `Tricky`, with its gate; one item at a time."""
    made = tmp_path / "tricky"
    tricky(made)
    (made / "model.py").rename(made / "handler.py")
    (made / "partita.toml").write_text("[model.tricky]\nmax_batch = 1\nqueue_size = 8\n")
    make_gate(made)
    return made


def item(value: int, what: int = 0, model: str = "tricky") -> bytes:
    return infer(model, np.array([value, what], np.float32).tobytes(), header=0)


def open_gate(folder: Path) -> Callable[[], None]:
    """Wait until a batch with `HOLD` executes; call what is returned to let it go on."""
    fds: list[int] = []

    def opened() -> bool:
        try:
            fds.append(os.open(folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads yet
            return False
        return True

    until(opened)
    return lambda: os.close(fds[0])


def value_of(client: RawClient) -> float:
    status, headers, body = client.answer()
    assert status == 200, body
    return float(np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.float32)[0])


# --- the start ------------------------------------------------------------------------------------


def test_the_document_names_models_plans_and_ports(linear: Path) -> None:
    with Serve(str(linear)) as server:
        document = server.ready()
        assert [(m["name"], m["version"]) for m in document["models"]] == [("linear", "1")]
        assert document["models"][0]["plan"].startswith("⟨")
        assert sorted(document["ports"]) == ["http", "metrics"]
        with RawClient("http://" + document["ports"]["http"]) as client:
            assert client.ask(READY) == (200, {"ready": True})
            client.send(infer("linear", np.ones((1, 4), np.float32).tobytes(), header=0))
            weight, bias = models.linear_weights()
            assert value_of(client) == pytest.approx(float(weight.sum(axis=0)[0] + bias[0]), rel=1e-4)
        os.kill(server.pid, signal.SIGINT)
        code, out, err = server.end()
        assert (code, out) == (0, "")
        assert f"http on http://{document['ports']['http']}" in err
        assert "Traceback" not in err


@pytest.mark.parametrize("port", ["http", "metrics", "grpc"])
def test_a_port_that_is_taken_is_2_and_said(linear: Path, port: str) -> None:
    other = ["--metrics", "off"] if port == "http" else ["--http", "127.0.0.1:0"]
    other += ["--metrics", "off"] if port == "grpc" else []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Serve(str(linear), ports=[f"--{port}", address, *other, "--management", "off"]) as server:
            code, out, err = server.end()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"partita: error: cannot listen on {address}")
    assert "Traceback" not in err


def test_a_corrupt_model_is_1_and_says_why(linear: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(linear.read_bytes()[:-20])
    with Serve(str(linear), str(broken)) as server:
        code, out, err = server.end()
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("partita: error: model 'broken' could not be loaded")


def test_a_signal_while_models_load_ends_the_server(folder: Path) -> None:
    handler = folder / "handler.py"
    slow = '    def load(self, context):\n        open(os.path.join(FOLDER, "gate")).read()\n\n'
    handler.write_text(handler.read_text().replace("    def infer", slow + "    def infer"))
    with Serve(str(folder)) as server:
        open_gate(folder)
        began_s = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        code, out, err = server.end()
    assert (code, out) == (0, ""), err
    assert time.monotonic() - began_s < 4.0  # a worker with something in hand would have 5 s


# --- the end --------------------------------------------------------------------------------------


def test_sigterm_under_load_answers_what_was_taken_and_refuses_the_rest(folder: Path) -> None:
    with Serve(str(folder)) as server:
        url = "http://" + server.ready()["ports"]["http"]
        with RawClient(url) as held, RawClient(url) as queued, RawClient(url) as idle, RawClient(url) as late:
            assert idle.ask(READY) == (200, {"ready": True})
            held.send(item(1, HOLD))
            let_go = open_gate(folder)
            queued.send(item(2) + item(3))
            assert late.ask(READY)[0] == 200
            os.kill(server.pid, signal.SIGTERM)

            def is_unready() -> bool:
                with RawClient(url) as probe:
                    return probe.ask(READY) == (503, {"ready": False})

            until(is_unready)
            idle.send(READY)  # a connection from before
            status, headers, _ = idle.answer()
            assert (status, headers["connection"]) == (503, "close")
            assert idle.is_at_end()
            status, document = late.ask(item(9))
            assert (status, document) == (503, {"error": "the server is shutting down"})
            assert server.process.poll() is None
            let_go()
            assert value_of(held) == 3
            assert value_of(queued) == 5
            code, _, err = server.end()
    assert code == 0
    assert "draining" in err
    assert "Traceback" not in err


def test_sigterm_under_many_clients_loses_no_answer(linear: Path) -> None:
    """Every client is answered rightly until it is told to stop; none waits in vain."""
    answered, ends = [0] * 8, [""] * 8
    x = np.ones((1, 4), np.float32)
    weight, bias = models.linear_weights()
    expected = float((x @ weight + bias)[0, 0])

    def ask(number: int, url: str) -> None:
        with RawClient(url) as client:
            while not ends[number]:
                try:
                    client.send(infer("linear", x.tobytes(), header=0))
                    status, headers, body = client.answer()
                except (EOFError, ConnectionError):
                    ends[number] = "closed"
                    return
                if status == 200:
                    start = int(headers["inference-header-content-length"])
                    assert np.frombuffer(body[start:], np.float32)[0] == pytest.approx(expected, rel=1e-4)
                    answered[number] += 1
                    ends[number] = headers.get("connection", "")
                else:
                    ends[number] = json.loads(body)["error"]

    with Serve(str(linear)) as server:
        url = "http://" + server.ready()["ports"]["http"]
        threads = [threading.Thread(target=ask, args=(number, url)) for number in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: min(answered) >= 20)
        os.kill(server.pid, signal.SIGTERM)
        for thread in threads:
            thread.join(LIMIT_S)
        code, _, err = server.end()
    assert code == 0, err
    assert set(ends) <= {"close", "the server is shutting down"}
    assert "Traceback" not in err


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    with Serve(str(folder)) as server:
        url = "http://" + server.ready()["ports"]["http"]
        with RawClient(url) as held, RawClient(url) as queued:
            held.send(item(1, HOLD))
            open_gate(folder)  # and never let it go
            queued.send(item(2))
            os.kill(server.pid, signal.SIGTERM)

            def is_unready() -> bool:
                with RawClient(url) as probe:
                    return probe.ask(READY)[0] == 503

            until(is_unready)
            began_s = time.monotonic()
            os.kill(server.pid, signal.SIGTERM)
            for client in (held, queued):
                status, _, body = client.answer()
                assert (status, "the server stopped" in json.loads(body)["error"]) == (503, True)
            server.end()
    assert time.monotonic() - began_s < 4.0  # the grace is 30 s, and a worker's own 5 s


def test_a_killed_head_leaves_no_worker(folder: Path) -> None:
    with Serve(str(folder)) as server:
        url = "http://" + server.ready()["ports"]["http"]
        assert len(server.workers()) == 1
        with RawClient(url) as held:
            held.send(item(1, HOLD))
            open_gate(folder)
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: server.pids() == [])


# --- while it runs --------------------------------------------------------------------------------


def test_metrics_reconcile_with_what_the_clients_saw(folder: Path) -> None:
    seen: dict[str, int] = {"ok": 0, "inference_failed": 0, "queue_full": 0, "cancelled": 0}
    with Serve(str(folder)) as server:
        ports = server.ready()["ports"]
        url = "http://" + ports["http"]
        with RawClient(url) as client:
            for number in range(30):
                fails = number % 5 == 4
                client.send(item(number, RAISE if fails else 0))
                status, _, body = client.answer()
                assert status == (500 if fails else 200), body
                seen["inference_failed" if fails else "ok"] += 1
            assert client.ask(infer("tricky", b"123", header=0))[0] == 400
            assert client.ask(request("/nowhere"))[0] == 404
        with RawClient(url) as held, RawClient(url) as gone:
            held.send(item(1, HOLD))
            let_go = open_gate(folder)
            gone.send(item(2))
            clients = [RawClient(url) for _ in range(12)]
            for one in clients:
                one.send(item(3))
            until(lambda: _taken_or_refused(ports["metrics"]) == 14)
            gone.__exit__()
            until(lambda: _metrics(ports["metrics"])["partita_requests_total", "cancelled"] == 1)
            seen["cancelled"] += 1
            let_go()
            assert value_of(held) == 3
            seen["ok"] += 1
            for one in clients:
                status = one.answer()[0]
                seen["ok" if status == 200 else "queue_full"] += 1
                one.__exit__()
        found = _metrics(ports["metrics"])
    assert seen["queue_full"] > 0
    assert found["partita_requests_total", "ok"] == seen["ok"]
    assert found["partita_requests_total", "inference_failed"] == seen["inference_failed"]
    assert found["partita_requests_total", "cancelled"] == 1
    assert found["partita_refusals_total", "queue_full"] == seen["queue_full"]
    assert found["partita_requests_in_flight", ""] == 0
    assert found["partita_request_latency_seconds_count", ""] == seen["ok"]
    assert found["partita_items_total", ""] == seen["ok"]


def _taken_or_refused(address: str) -> float:
    found = _metrics(address)
    refused = found.get(("partita_refusals_total", "queue_full"), 0)
    return found["partita_requests_in_flight", ""] + refused


def _metrics(address: str) -> dict[tuple[str, str], float]:
    """Samples of the only model by name and outcome or code."""
    with RawClient("http://" + address) as client:
        client.send(request("/metrics", method="GET"))
        status, headers, body = client.answer()
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found[sample.name, sample.labels.get("outcome") or sample.labels.get("code") or ""] = sample.value
    return found


@pytest.mark.alone
def test_a_server_with_nothing_to_do_does_nothing(linear: Path) -> None:
    """Less than 1 % of a core over two seconds, head and workers together, with clients connected."""

    def cpu_s() -> float:
        tasks = [t for pid in server.pids() for t in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    with Serve(str(linear)) as server:
        url = "http://" + server.ready()["ports"]["http"]
        with RawClient(url) as one, RawClient(url) as two:
            for client in (one, two):
                client.send(infer("linear", np.ones((1, 4), np.float32).tobytes(), header=0))
                value_of(client)
            before_s, began_s = cpu_s(), time.monotonic()
            time.sleep(2.0)  # this is what is measured
            used_s, passed_s = cpu_s() - before_s, time.monotonic() - began_s
        assert used_s / passed_s < 0.01, f"{used_s * 1e3:.1f} ms in {passed_s:.2f} s"
        os.kill(server.pid, signal.SIGTERM)
        assert server.end()[0] == 0


@pytest.mark.parametrize("path", ["/v2/models/tricky/infer", "/predictions/tricky"])
def test_two_hundred_clients_that_leave_while_they_wait_are_never_executed(folder: Path, path: str) -> None:
    (folder / "partita.toml").write_text("[model.tricky]\nmax_batch = 1\nqueue_size = 300\n")
    with Serve(str(folder)) as server:
        ports = server.ready()["ports"]
        url = "http://" + ports["http"]

        def counted(name: str, **labels: str) -> float:
            with RawClient("http://" + ports["metrics"]) as client:
                client.send(request("/metrics", method="GET"))
                families = text_string_to_metric_families(client.answer()[2].decode())
            samples = [s for family in families for s in family.samples if s.name == name]
            return sum(s.value for s in samples if labels.items() <= s.labels.items())

        def asked(value: int, what: int = 0) -> bytes:
            header = ["Inference-Header-Content-Length: 0"] if path.startswith("/v2") else []
            return request(path, np.array([value, what], np.float32).tobytes(), *header)

        with RawClient(url) as held, RawClient(url) as ahead:
            held.send(asked(1, HOLD))
            let_go = open_gate(folder)
            ahead.send(asked(2))
            until(lambda: counted("partita_requests_in_flight") == 2)
            leaving = [RawClient(url) for _ in range(200)]
            for client in leaving:
                client.send(asked(3))
            until(lambda: counted("partita_requests_in_flight") == 202)
            for client in leaving:
                client.__exit__()
            until(lambda: counted("partita_requests_in_flight") == 2)
            assert counted("partita_requests_total", outcome="cancelled") == 200
            let_go()
            assert held.answer()[0] == ahead.answer()[0] == 200
        assert counted("partita_worker_restarts") == 0
    assert executed(folder) == [[1], [2]]
