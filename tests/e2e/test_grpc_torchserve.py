"""TorchServe's services and the health check over gRPC, as bytes that a client of theirs would send."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.embedded import Server
from partita.system.addresses import Address
from tests.e2e.test_torchserve import CONTENT, serving, store  # noqa: F401  (`store` is a fixture)

grpc = pytest.importorskip("grpc")

pytestmark = pytest.mark.e2e

INFERENCE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
MANAGEMENT = "/org.pytorch.serve.grpc.management.ManagementAPIsService/"
LOCAL = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:  # noqa: F811
    more: dict[str, Any] = {"token_auth": True, "enable_model_api": True, "model_store": str(store)}
    more |= {"grpc": LOCAL, "grpc_management": LOCAL}
    with serving(store / "linear.onnx", store / "upper", **more) as running:
        yield running


@pytest.fixture
def channel(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(str(server.head.ports["grpc"])) as made:
        yield made


def field(number: int, value: bytes | str | int) -> bytes:
    """Return one field as protobuf writes it; all are shorter than 128 bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(raw)]) + raw


def predictions(model: str, version: str = "", **inputs: bytes) -> bytes:
    entries = (field(3, field(1, name) + field(2, content)) for name, content in inputs.items())
    return field(1, model) + field(2, version) + b"".join(entries)


def only_field(data: bytes) -> bytes:
    """Return the content of a message that has one field, number 1, of any length."""
    size, at, shift = 0, 1, 0
    while True:
        size |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return data[at : at + size]


def test_predictions_and_ping(channel: Any) -> None:
    predict = channel.unary_unary(INFERENCE + "Predictions")
    assert only_field(predict(predictions("upper", data=b"text"), timeout=20)) == b"TEXT"
    answer = json.loads(only_field(predict(predictions("linear", "1.0", data=CONTENT), timeout=20)))
    assert len(answer) == 3
    health = only_field(channel.unary_unary(INFERENCE + "Ping")(b"", timeout=20))
    assert json.loads(health) == {"status": "Healthy"}


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (predictions("none", data=b"x"), grpc.StatusCode.NOT_FOUND, "Model not found: none"),
        (predictions("linear", "7", data=CONTENT), grpc.StatusCode.NOT_FOUND, "version: 7"),
        (predictions("linear", data=b"[1]"), grpc.StatusCode.INVALID_ARGUMENT, "wants [-1, 4]"),
        (predictions("linear"), grpc.StatusCode.INVALID_ARGUMENT, "at least one entry"),
        (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "is not a PredictionsRequest"),
    ],
    ids=["model", "version", "shape", "no input", "no message"],
)
def test_errors(channel: Any, request_: bytes, status: Any, said: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(INFERENCE + "Predictions")(request_, timeout=20)
    assert caught.value.code() == status
    assert said in caught.value.details()


def test_management_with_the_token(server: Server, channel: Any) -> None:
    keys = server.head.access.keys
    assert keys is not None
    good = (("authorization", f"Bearer {keys.current['management'].value}"),)

    def manage(method: str, data: bytes) -> str:
        answer = channel.unary_unary(MANAGEMENT + method)(data, timeout=20, metadata=good)
        return only_field(answer).decode()

    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(MANAGEMENT + "ListModels")(b"", timeout=20)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert [m["modelName"] for m in json.loads(manage("ListModels", b""))["models"]] == ["linear", "upper"]
    assert json.loads(manage("DescribeModel", field(1, "linear")))[0]["modelName"] == "linear"
    registered = manage(
        "RegisterModel", field(3, 1) + field(5, "more") + field(8, 1) + field(9, "linear.onnx")
    )
    assert registered == 'Model "more" Version: 1 registered with 1 initial workers'
    assert manage("ScaleWorker", field(1, "more") + field(4, 1) + field(6, 1)) == (
        "Workers scaled to 1 for model: more"
    )
    assert "successfully updated" in manage("SetDefault", field(1, "more") + field(2, "1"))
    assert manage("UnregisterModel", field(1, "more")) == 'Model "more" unregistered'
    with pytest.raises(grpc.RpcError) as caught:
        manage("DescribeModel", field(1, "more"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        manage("RegisterModel", field(9, "linear.onnx"))
    assert caught.value.code() == grpc.StatusCode.ABORTED


def test_management_has_an_address_of_its_own_too(server: Server) -> None:
    keys = server.head.access.keys
    assert keys is not None
    token = (("authorization", f"Bearer {keys.current['management'].value}"),)
    assert server.head.ports["grpc_management"] != server.head.ports["grpc"]
    with grpc.insecure_channel(str(server.head.ports["grpc_management"])) as channel:
        answer = channel.unary_unary(MANAGEMENT + "ListModels")(b"", timeout=20, metadata=token)
    assert b'"upper"' in answer


def test_the_standard_health_check(channel: Any) -> None:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    for name in ("", "linear"):
        assert check(field(1, name), timeout=20) == field(1, 1)
    with pytest.raises(grpc.RpcError) as caught:
        check(field(1, "none"), timeout=20)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
