"""Traces and request lines: what is told of requests that were answered, failed, refused and given up."""

import io
import json
import logging
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.core.errors import MissingExtra
from partita.embedded import Server
from partita.logs import JsonLines, TextLines
from partita.settings import ServerSettings, Settings, check_build
from tests import models
from tests.e2e.test_serve import open_gate, until
from tests.e2e.test_torchserve import LOCAL, ask, serving
from tests.engine_driver import HOLD, RAISE, make_gate, tricky
from tests.otlp_receiver import Receiver, values
from tests.raw_client import RawClient, infer

pytest.importorskip("opentelemetry.sdk")
triton = pytest.importorskip("tritonclient.grpc")

pytestmark = pytest.mark.e2e

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = (f"00-{TRACE}-{PARENT}-{flag}" for flag in ("01", "00"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("observed")
    models.linear(made / "linear.onnx")
    models.linear(made / "other.onnx")
    (made / "pair.toml").write_text(
        'name = "pair"\n[[member]]\npath = "linear.onnx"\n[[member]]\npath = "other.onnx"\n'
    )
    return made


def tricky_model(folder: Path) -> Path:
    """A model folder of `Tricky`, one item at a time."""
    made = folder / "tricky"
    tricky(made)
    (made / "model.py").rename(made / "handler.py")
    (made / "partita.toml").write_text("[model.tricky]\nmax_batch = 1\n")
    return made


def asking(model: str, what: float = 0.0, *, name: str = "", width: int = 4, **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, width], "data": [what] * width}
    return infer(model, json.dumps({"inputs": [tensor], **({"id": name} if name else {}), **more}).encode())


def with_fields(raw: bytes, *fields: str) -> bytes:
    return raw.replace(b"\r\n", b"\r\n" + "".join(f"{f}\r\n" for f in fields).encode(), 1)


def asked(server: Server, raw: bytes, *fields: str) -> int:
    with RawClient(server.url()) as client:
        client.send(with_fields(raw, *fields))
        return client.answer()[0]


def traced(path: Path, receiver: Receiver, **more: Any) -> Server:
    return serving(path, tracing=receiver.url, grpc=LOCAL, **more)


def spans_by_request(receiver: Receiver) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = {}
    for span in receiver.spans:
        parts = found.setdefault(values(span.attributes)["request.id"], {})
        parts.setdefault(span.name, []).append(span)
    return found


def test_a_span_for_each_request_with_its_parts_in_the_callers_trace(place: Path) -> None:
    with Receiver() as receiver:
        with traced(place / "linear.onnx", receiver) as server:
            for _ in range(3):
                assert asked(server, asking("linear", name="named"), f"traceparent: {SAMPLED}") == 200
            client = triton.InferenceServerClient(str(server.head.ports["grpc"]))
            x = triton.InferInput("x", [2, 4], "FP32").set_data_from_numpy(np.ones((2, 4), np.float32))
            client.infer("linear", [x], headers={"traceparent": SAMPLED, "x-request-id": "over gRPC"})
            client.close()
            fields = ("X-Request-Id: theirs", f"traceparent: {SAMPLED}")
            ask(server, "POST", "/predictions/linear", b"[1, 2, 3, 4]", *fields)
            server.predict("linear", np.ones((1, 4), np.float32))
        found = spans_by_request(receiver)
    assert receiver.resources[0]["service.name"] == "partita"
    assert {"named", "over gRPC", "theirs"} < found.keys()
    assert len(found["named"]["request"]) == 3
    for name in ("named", "over gRPC", "theirs"):
        for span in found[name]["request"]:
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    (whole,), (queue,), (compute,) = (found["over gRPC"][name] for name in ("request", "queue", "compute"))
    assert {queue.parent_span_id, compute.parent_span_id} == {whole.span_id}
    assert whole.start_time_unix_nano == queue.start_time_unix_nano
    assert queue.end_time_unix_nano == compute.start_time_unix_nano <= compute.end_time_unix_nano
    assert compute.end_time_unix_nano <= whole.end_time_unix_nano
    said = values(whole.attributes)
    assert {k: said[k] for k in ("rpc.system", "partita.model", "partita.items", "partita.outcome")} == {
        "rpc.system": "grpc",
        "partita.model": "linear",
        "partita.items": 2,
        "partita.outcome": "ok",
    }
    assert values(compute.attributes)["partita.batch.items"] == 2
    assert "combine" not in found["over gRPC"]
    (python,) = found.keys() - {"named", "over gRPC", "theirs"}
    assert found[python]["request"][0].trace_id.hex() != TRACE


def test_an_ensemble_has_an_execution_for_each_member_and_their_combination(place: Path) -> None:
    with Receiver() as receiver:
        with traced(place / "pair.toml", receiver) as server:
            assert asked(server, asking("pair", name="both")) == 200
        found = spans_by_request(receiver)["both"]
    assert {values(span.attributes)["partita.model"] for span in found["compute"]} == {"linear", "other"}
    (combine,) = found["combine"]
    assert combine.start_time_unix_nano == max(span.end_time_unix_nano for span in found["compute"])
    assert combine.end_time_unix_nano == found["request"][0].end_time_unix_nano


def test_failures_refusals_and_clients_that_leave(tmp_path: Path) -> None:
    model = tricky_model(tmp_path)
    make_gate(model)
    with Receiver() as receiver:
        with traced(model, receiver) as server:
            service = server.head.engine.service("tricky")
            assert asked(server, asking("tricky", RAISE, name="raises", width=2)) == 500
            with RawClient(server.url()) as holding:
                holding.send(asking("tricky", HOLD, name="held", width=2))
                until(lambda: service.member.dispatcher.running_items == 1)
                with RawClient(server.url()) as leaving:
                    leaving.send(asking("tricky", name="leaves", width=2))
                    until(lambda: service.statistics.in_flight() == 2)
                until(lambda: service.statistics.cancelled == 1)
                late = asking("tricky", name="late", width=2, parameters={"timeout": 1000})
                assert asked(server, late) == 504
                open_gate(model)()
                assert holding.answer()[0] == 200
        found = spans_by_request(receiver)
    whole = {name: values(parts["request"][0].attributes) for name, parts in found.items()}
    outcomes = {name: attributes["partita.outcome"] for name, attributes in whole.items()}
    assert outcomes == {
        "raises": "inference_failed",
        "held": "ok",
        "leaves": "cancelled",
        "late": "deadline_exceeded",
    }
    assert found["raises"]["request"][0].status.code == 2
    assert len(found["raises"].get("compute", [])) == 0, "the batch raised: it was never done"
    assert "compute" not in found["leaves"]


def test_sampling_is_the_callers_and_else_as_set(place: Path) -> None:
    with Receiver() as receiver:
        with traced(place / "linear.onnx", receiver, trace_sampling=0.0) as server:
            for field, name in ((SAMPLED, "sampled"), (NOT_SAMPLED, "not sampled"), ("x", "odd")):
                assert asked(server, asking("linear", name=name), f"traceparent: {field}") == 200
            assert asked(server, asking("linear", name="unsaid")) == 200
        assert spans_by_request(receiver).keys() == {"sampled"}


def test_a_receiver_that_is_not_there_disturbs_nothing(place: Path) -> None:
    with serving(place / "linear.onnx", tracing="http://127.0.0.1:9") as server:
        assert asked(server, asking("linear")) == 200


def test_without_tracing_nothing_of_it_is_imported_or_in_the_way() -> None:
    code = (
        "import sys, partita.server, partita.embedded, partita.protocols.grpc.server\n"
        "from partita.engine.engine import Engine\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110)


def test_tracing_without_the_extra_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"partita\[tracing\]"):
        check_build(Settings(server=ServerSettings(tracing="http://localhost:4318")))


# --- lines ----------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What is logged meanwhile, as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("partita.requests")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_a_line_for_each_request(tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]) -> None:
    with serving(tricky_model(tmp_path), log_requests=True) as server:
        with RawClient(server.url()) as client:
            for _ in range(3):  # on one connection: none takes a way that nobody observes
                client.send(with_fields(asking("tricky", width=2), "x-request-id: mine"))
                assert client.answer()[0] == 200
        raising = asking("tricky", RAISE, name="raises", width=2)
        assert asked(server, raising, f"traceparent: {SAMPLED}") == 500
        _, fields, _ = ask(server, "POST", "/predictions/tricky", b"[1, 1]")
    *ok, raised, predicted = lines()
    assert [one["request_id"] for one in ok] == ["mine"] * 3
    assert {one["outcome"] for one in ok} == {"ok"}
    assert all(one["total_ms"] >= one["compute_ms"] > 0 and one["items"] == 1 for one in ok)
    assert (raised["level"], raised["outcome"]) == ("warning", "inference_failed")
    assert (raised["request_id"], raised["trace_id"], raised["protocol"]) == ("raises", TRACE, "http")
    assert predicted["request_id"] == fields["x-request-id"]


def test_the_requests_of_a_stream_do_not_get_the_name_of_one_that_failed(
    place: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    good = triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))
    short = triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))
    short.set_shape([2, 4])
    answers: queue.Queue[Any] = queue.Queue()
    with serving(place / "linear.onnx", log_requests=True, grpc=LOCAL) as server:
        client = triton.InferenceServerClient(str(server.head.ports["grpc"]))
        client.start_stream(lambda result, error: answers.put(error), headers={"x-request-id": "the stream"})
        for x, name in ((good, "named"), (short, "failed"), (good, ""), (good, "a\nb")):
            client.async_stream_infer("linear", [x], request_id=name)
        errors = [answers.get(timeout=60) is not None for _ in range(4)]
        client.stop_stream()
        client.close()
    assert errors == [False, True, False, False]
    assert [one["request_id"] for one in lines()] == ["named", "the stream", "the stream"]


@pytest.mark.parametrize("name", ["a\nb", "a\u2028b", "\x1b[2J", "x" * 129])
def test_a_name_that_cannot_stand_in_a_line_is_none(
    place: Path, lines: Callable[[], list[dict[str, Any]]], name: str
) -> None:
    with serving(place / "linear.onnx", log_requests=True) as server:
        fields = ("x-request-id: header", f"traceparent: 00-{TRACE[1:]}-{PARENT}-01")
        assert asked(server, asking("linear", name=name), *fields) == 200
    (line,) = lines()
    assert line["request_id"] == "header"
    assert "trace_id" not in line


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a-b_c=1", "a-b_c=1"),
        (1.5, "1.5"),
        ("x outcome=ok", '"x outcome=ok"'),
        ("x\n2026 ERROR gone", r'"x\n2026 ERROR gone"'),
        ('"x"', r'"\"x\""'),
        ("\u2028\x85", r'"\u2028\u0085"'),
        ("", '""'),
    ],
)
def test_a_field_ends_neither_its_line_nor_itself(value: Any, said: str) -> None:
    record = logging.LogRecord("partita", logging.INFO, "", 1, "request", (), None)
    record.fields = {"error": value, "items": 2}
    assert TextLines().format(record).endswith(f" INFO request error={said} items=2")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("lost: a\n2026 ERROR forged", r"lost: a\n2026 ERROR forged"),
        ("\x1b[2J\r\u2028", r"\u001b[2J\r\u2028"),
        ("naïve ✓", "naïve ✓"),
    ],
)
def test_a_message_is_one_line_whatever_is_in_it(message: str, said: str) -> None:
    record = logging.LogRecord("partita", logging.INFO, "", 1, "%s", (message,), None)
    (line,) = TextLines().format(record).splitlines()
    assert line.endswith(f" INFO {said}")


def test_records_as_lines() -> None:
    record = logging.LogRecord("partita", logging.WARNING, "", 1, "%d of %s", (2, 'a "b"'), None)
    document = json.loads(JsonLines().format(record))
    assert document.pop("time").endswith("+00:00")
    assert document == {"level": "warning", "logger": "partita", "message": '2 of a "b"'}
    record.fields = {"request_id": "x"}
    assert TextLines().format(record).endswith('WARNING 2 of a "b" request_id=x')
    try:
        raise ValueError("broken")
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *below = TextLines().format(record).splitlines()
    assert first.endswith(" request_id=x")
    assert below[-1] == "ValueError: broken"
    assert "ValueError: broken" in json.loads(JsonLines().format(record))["exception"]
    assert len(JsonLines().format(record).splitlines()) == 1
