"""The load generator against a real server whose behaviour is known."""

import asyncio
import json

import numpy as np
import pytest

from partita.core.errors import InvalidInput
from partita.core.tensors import DataType
from partita.loadgen import Arrivals, LoadSpec, Target, Unreachable, payload_for, run_load
from partita.loadgen.connection import Connection
from partita.loadgen.loops import arrival_times
from partita.loadgen.payload import random_bytes
from partita.loadgen.result import histogram, percentile
from tests.echo_server import EchoServer, echo_server


def _target(server: EchoServer) -> Target:
    return Target.parse(f"http://127.0.0.1:{server.port}")


# --- requests -------------------------------------------------------------------------------------


def test_a_payload_is_a_request_of_the_binary_extension() -> None:
    with echo_server() as server:
        payload = payload_for(_target(server), "m", items=3)
    assert payload.items == 3
    assert len(set(payload.requests)) > 1
    head, body = payload.requests[0].split(b"\r\n\r\n", 1)
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    fields = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    assert int(fields[b"Content-Length"]) == len(body)
    described = json.loads(body[: int(fields[b"Inference-Header-Content-Length"])])
    assert described["parameters"] == {"binary_data_output": True}
    (x,) = described["inputs"]
    assert (x["name"], x["shape"], x["datatype"]) == ("x", [3, 4], "FP32")
    raw = body[int(fields[b"Inference-Header-Content-Length"]) :]
    assert len(raw) == x["parameters"]["binary_data_size"] == 3 * 4 * 4
    assert ((np.frombuffer(raw, "<f4") >= 0) & (np.frombuffer(raw, "<f4") < 1)).all()


@pytest.mark.parametrize("datatype", list(DataType))
def test_random_values_have_the_right_size(datatype: DataType) -> None:
    raw = random_bytes(datatype, 5, np.random.default_rng(0))
    assert len(raw) == 5 * (datatype.item_bytes or 4)


def test_open_axes_take_the_shape_given() -> None:
    with echo_server() as server:
        assert payload_for(_target(server), "m", shapes={"x": (4,)}).items == 1
        with pytest.raises(InvalidInput, match=r"does not fit \[4\]"):
            payload_for(_target(server), "m", shapes={"x": (5,)})


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "ftp://x", "http://", "http://127.0.0.1:99999"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidInput):
        Target.parse(url)


def test_other_machines_are_refused_unless_allowed() -> None:
    with pytest.raises(InvalidInput, match="--allow-remote"):
        Target.parse("http://example.org:8080")
    assert str(Target.parse("http://example.org/a/", allow_remote=True)) == "http://example.org:80/a"
    assert Target.parse("localhost:8080").address.port == 8080


def test_nobody_there() -> None:
    target = Target.parse("127.0.0.1:1")
    with pytest.raises(Unreachable, match="no answer from"):
        target.get_json("v2")
    with pytest.raises(Unreachable, match="no answer from"):
        target.wait_ready(0.0)


# --- loads ----------------------------------------------------------------------------------------


def test_a_closed_loop_keeps_its_concurrency() -> None:
    delay_s = 0.02
    with echo_server(lambda _: (200, delay_s)) as server:
        payload = payload_for(_target(server), "m", items=2)
        seen: list[tuple[float, int]] = []
        spec = LoadSpec(concurrency=4, duration_s=0.6, warmup_s=0.1)
        result = run_load(_target(server), payload, spec, lambda s, n: seen.append((s, n)))
    assert result.mode == "closed"
    assert result.errors == {}
    assert result.p50_ms is not None
    assert result.p50_ms >= delay_s * 1e3
    # Little's law: requests in flight = rate × latency
    assert result.mean_ms is not None
    assert result.requests_per_s * result.mean_ms / 1e3 == pytest.approx(4, rel=0.25)
    assert result.items_per_s == pytest.approx(2 * result.requests_per_s)
    assert sum(count for _, count in result.histogram) == result.requests
    assert seen
    assert json.loads(json.dumps(result.as_json()))["requests"] == result.requests


def test_warm_up_is_not_counted() -> None:
    with echo_server(lambda n: (503, 0.0) if n == 0 else (200, 0.0)) as server:
        spec = LoadSpec(concurrency=1, duration_s=0.1, warmup_s=0.1)
        result = run_load(_target(server), payload_for(_target(server), "m"), spec)
    assert result.errors == {}


def test_errors_are_counted_by_status_and_hang_ups_survived() -> None:
    def behave(n: int) -> tuple[int, float]:
        return ({0: 503, 1: 400, 2: 0}.get(n % 10, 200), 0.0)

    with echo_server(behave) as server:
        spec = LoadSpec(concurrency=2, duration_s=0.3, warmup_s=0.0)
        result = run_load(_target(server), payload_for(_target(server), "m"), spec)
    assert set(result.errors) == {"400", "503", "connection closed"}
    assert result.requests > 10


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_an_open_loop_keeps_its_rate(arrivals: Arrivals) -> None:
    with echo_server() as server:
        spec = LoadSpec(rate=400, arrivals=arrivals, duration_s=0.5, warmup_s=0.1, seed=3)
        result = run_load(_target(server), payload_for(_target(server), "m"), spec)
        due = [t for t in arrival_times(400, arrivals, 0.6, 3) if t >= 0.1]
        assert result.requests == len(due)
        assert len(server.bodies) == len(arrival_times(400, arrivals, 0.6, 3))
    assert result.errors == {}
    assert result.send_delay_p99_ms is not None


def test_a_stall_is_charged_to_all_who_would_have_come() -> None:
    """A server that stops for 300 ms, one request at a time: a closed loop would see one slow request."""
    with echo_server(lambda n: (200, 0.3 if n == 20 else 0.0)) as server:
        spec = LoadSpec(rate=200, arrivals=Arrivals.CONSTANT, duration_s=0.5, warmup_s=0.0, max_connections=1)
        result = run_load(_target(server), payload_for(_target(server), "m"), spec)
    assert result.requests == 100
    slow = sum(count for upper_ms, count in result.histogram if upper_ms > 100)
    assert slow >= 35  # 300 ms of arrivals at 200/s, those that waited more than 100 ms: about 40


def test_what_is_never_answered_is_said() -> None:
    with echo_server(lambda n: (200, 60.0 if n == 3 else 0.0)) as server:
        payload = payload_for(_target(server), "m")
        for spec in (
            LoadSpec(rate=100, duration_s=0.1, warmup_s=0.0, drain_s=0.1, arrivals=Arrivals.CONSTANT),
            LoadSpec(concurrency=1, duration_s=0.1, warmup_s=0.0, drain_s=0.1),
        ):
            server.bodies.clear()
            assert run_load(_target(server), payload, spec).errors == {"unanswered": 1}


def test_no_server_is_an_error_and_not_a_figure() -> None:
    with echo_server() as server:
        payload = payload_for(_target(server), "m")
    with pytest.raises(Unreachable, match="cannot connect"):
        run_load(Target.parse("127.0.0.1:1"), payload, LoadSpec(concurrency=1))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"concurrency": 1, "rate": 1.0},
        {"concurrency": 0},
        {"rate": 0.0},
        {"rate": 1.0, "duration_s": 0.0},
        {"rate": 1.0, "warmup_s": -1.0},
    ],
)
def test_loads_that_make_no_sense(spec: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        LoadSpec(**spec)  # type: ignore[arg-type]


# --- the pieces -----------------------------------------------------------------------------------


def test_arrivals() -> None:
    constant = arrival_times(10, Arrivals.CONSTANT, 1.0, 0)
    assert constant == pytest.approx(np.arange(10) / 10)
    poisson = np.array(arrival_times(1000, Arrivals.POISSON, 20.0, 1))
    gaps = np.diff(poisson)
    assert len(poisson) == pytest.approx(20_000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert arrival_times(50, Arrivals.POISSON, 1.0, 7) == arrival_times(50, Arrivals.POISSON, 1.0, 7)


def test_percentiles_are_values_that_were_seen() -> None:
    ordered = np.arange(1.0, 101.0)
    assert [percentile(ordered, q) for q in (0.5, 0.9, 0.99, 0.999, 1.0)] == [50, 90, 99, 100, 100]
    assert percentile(ordered[:1], 0.5) == 1
    assert percentile(ordered[:0], 0.5) is None


def test_histogram_holds_every_value_below_its_bound() -> None:
    values = np.random.default_rng(0).lognormal(1, 2, 500)
    buckets = histogram(values)
    assert sum(count for _, count in buckets) == 500
    for upper, count in buckets:
        inside = (values <= upper * (1 + 1e-12)) & (values > upper / 2**0.25 * (1 + 1e-12))
        assert inside.sum() == count


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def _feed(*pieces: bytes) -> tuple[list[str], Connection]:
    ended: list[str] = []
    connection = Connection(lambda _, status: ended.append(status))
    connection.connection_made(_Transport())
    connection.send(b"request", 0.0)
    for piece in pieces:
        connection.data_received(piece)
    return ended, connection


ANSWER = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello"


def test_an_answer_byte_by_byte_and_whole() -> None:
    assert _feed(ANSWER)[0] == ["200"]
    assert _feed(*(ANSWER[i : i + 1] for i in range(len(ANSWER))))[0] == ["200"]
    for cut in range(len(ANSWER)):
        assert _feed(ANSWER[:cut])[0] == []
        assert _feed(ANSWER[:cut], ANSWER[cut:])[0] == ["200"]


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER + b"!",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_answers_that_cannot_be_counted_end_the_connection(answer: bytes) -> None:
    ended, connection = _feed(answer)
    assert ended == ["malformed answer"]
    assert not connection.is_open
