"""The real `tritonclient.grpc` against an embedded server, unmodified."""

import asyncio
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.embedded import Server
from partita.settings import ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.e2e.test_serve import Serve, folder, open_gate, until  # noqa: F401  (`folder` is a fixture)
from tests.e2e.test_tritonclient_types import NUMBERS, echo, extremes
from tests.engine_driver import HOLD, LIMIT_S, RAISE, executed

triton = pytest.importorskip("tritonclient.grpc")
triton_aio = pytest.importorskip("tritonclient.grpc.aio")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
grpc = pytest.importorskip("grpc")
utils = pytest.importorskip("tritonclient.utils")

pytestmark = pytest.mark.e2e

LOCAL = Address("127.0.0.1", 0)


def serving(*paths: Path, **server: Any) -> Server:
    settings = Settings(server=ServerSettings(http=None, metrics=None, grpc=LOCAL, **server))
    return Server(paths, cores=1, tune="never", settings=settings, ports=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("models")
    paths = [models.linear(place / "linear.onnx"), models.two_inputs(place / "two.onnx")]
    paths += [
        models.sequence_sum(place / "sequence.onnx"),
        *(echo(place, d) for d in (*NUMBERS, "BF16", "BYTES")),
    ]
    with serving(*paths, max_body_bytes=1 << 20) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    made = triton.InferenceServerClient(str(server.head.ports["grpc"]))
    yield made
    made.close()


@pytest.fixture
def stub(server: Server) -> Iterator[Any]:
    """The client's own generated code, for requests that it never makes."""
    from tritonclient.grpc import service_pb2_grpc

    with grpc.insecure_channel(str(server.head.ports["grpc"])) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def given(name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def linear_input(rows: int = 3) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    return x, given("x", x, "FP32")


def test_health_metadata_configuration_and_index(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("linear", "1")
    assert not client.is_model_ready("linear", "9")
    assert not client.is_model_ready("none")
    assert "statistics" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("linear", as_json=True)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]
    config = client.get_model_config("linear").config
    assert config.max_batch_size > 0
    assert config.input[0].data_type == triton.model_config_pb2.TYPE_FP32
    assert list(config.output[0].dims) == [3]
    assert ("linear", "1", "READY") in {
        (m.name, m.version, m.state) for m in client.get_model_repository_index().models
    }


def test_infer_with_an_id_a_version_and_an_output_that_is_named(server: Server, client: Any) -> None:
    x, tensor = linear_input()
    for _ in range(2):  # the second time its like is known
        answer = client.infer(
            "linear", [tensor], "1", outputs=[triton.InferRequestedOutput("y")], request_id="seven"
        )
        np.testing.assert_allclose(answer.as_numpy("y"), server.predict("linear", x)["y"], rtol=1e-6)
        assert answer.get_response().id == "seven"
        assert answer.get_response().model_version == "1"


def test_the_same_request_again_with_other_data(server: Server, client: Any) -> None:
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(2, 4)).astype(np.float32)
        answer = client.infer("linear", [given("x", x, "FP32")])
        np.testing.assert_allclose(answer.as_numpy("y"), server.predict("linear", x)["y"], rtol=1e-6)


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_to_their_limits(client: Any, datatype: str) -> None:
    x = extremes(datatype)
    got = client.infer(f"echo_{datatype.lower()}", [given("t", x, datatype)]).as_numpy("t")
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, x)


def test_bf16_as_the_client_packs_it(client: Any) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.array([[1.5, -2.0], [0.0, 256.0]], bfloat16)
    answer = client.infer("echo_bf16", [given("t", x, "BF16")])
    assert answer.get_output("t").datatype == "BF16"
    np.testing.assert_array_equal(answer.as_numpy("t"), x)


def test_strings_of_any_length_under_one_shape(client: Any) -> None:
    for values in ([["é", ""], ["a" * 1000, "b"]], [["", ""], ["", "c"]]):
        x = np.array(values, object)
        got = client.infer("echo_bytes", [given("t", x, "BYTES")]).as_numpy("t")
        assert [v.decode() for v in got.ravel()] == x.ravel().tolist()


def test_items_of_no_elements(client: Any) -> None:
    x = np.zeros((2, 0, 4), np.float32)
    answer = client.infer("sequence", [given("x", x, "FP32")])
    np.testing.assert_array_equal(answer.as_numpy("total"), np.zeros((2, 4), np.float32))
    assert answer.as_numpy("doubled").shape == (2, 0, 4)


def test_inputs_in_any_order_and_a_subset_of_the_outputs(server: Server, client: Any) -> None:
    x, index = np.ones((2, 4), np.float32), np.array([3, 4])
    for tensors in ([given("index", index, "INT64"), given("x", x, "FP32")],) * 2:
        answer = client.infer("two", tensors, outputs=[triton.InferRequestedOutput("y")])
        np.testing.assert_array_equal(
            answer.as_numpy("y"), server.predict("two", {"x": x, "index": index})["y"]
        )
        assert answer.as_numpy("twice") is None


def test_classification(server: Server, client: Any) -> None:
    x, tensor = linear_input(2)
    answer = client.infer("linear", [tensor], outputs=[triton.InferRequestedOutput("y", class_count=2)])
    best = [int(text.split(b":")[1]) for text in answer.as_numpy("y")[:, 0]]
    assert best == server.predict("linear", x)["y"].argmax(axis=1).tolist()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(server: Server, client: Any, algorithm: str) -> None:
    x, tensor = linear_input(500)
    answer = client.infer("linear", [tensor], compression_algorithm=algorithm)
    np.testing.assert_allclose(answer.as_numpy("y"), server.predict("linear", x)["y"], rtol=1e-6)


def test_statistics_count(client: Any) -> None:
    before = client.get_inference_statistics("linear").model_stats[0]
    client.infer("linear", [linear_input(3)[1]])
    after = client.get_inference_statistics("linear", "1").model_stats[0]
    assert after.inference_count - before.inference_count == 3
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert len(client.get_inference_statistics().model_stats) > 3


# --- typed contents -------------------------------------------------------------------------------

TYPED = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents",
    "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def typed(datatype: str, values: list[Any], field: str, shape: tuple[int, ...] = (1, 2)) -> Any:
    request = service_pb2.ModelInferRequest(model_name=f"echo_{datatype.lower()}")
    tensor = request.inputs.add(name="t", datatype=datatype, shape=shape)
    getattr(tensor.contents, field).extend(values)
    return request


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_are_answered_with_typed_contents(stub: Any, datatype: str) -> None:
    values = [b"a", b""] if datatype == "BYTES" else extremes(datatype).ravel().tolist()
    answer = stub.ModelInfer(typed(datatype, values, TYPED[datatype]))
    assert list(getattr(answer.outputs[0].contents, TYPED[datatype])) == values
    assert not answer.raw_output_contents


def with_raw_too() -> Any:
    request = typed("FP32", [1.0, 2.0], "fp32_contents")
    request.raw_input_contents.append(bytes(8))
    return request


def with_shared_memory() -> Any:
    request = typed("FP32", [1.0, 2.0], "fp32_contents")
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    return request


def raw(data: list[bytes]) -> Any:
    request = service_pb2.ModelInferRequest(model_name="echo_fp32", raw_input_contents=data)
    request.inputs.add(name="t", datatype="FP32", shape=(1, 2))
    return request


def with_wrong_parameter() -> Any:
    request = raw([bytes(8)])
    request.parameters["timeout"].string_param = "soon"
    return request


WRONG = {
    "a value out of range": (typed("INT8", [1, 200], "int_contents"), "INT8 holds -128 to 127"),
    "too few values": (typed("FP32", [1.0], "fp32_contents"), "1 values, its shape [1, 2] 2"),
    "contents of another type": (
        typed("FP32", [1, 2], "int_contents"),
        "contents.fp32_contents has 0 values",
    ),
    "a type without contents": (typed("FP16", [1.0, 2.0], "fp32_contents"), "use raw_input_contents"),
    "an unknown type": (typed("FP8", [1.0, 2.0], "fp32_contents"), "is not served"),
    "both kinds": (with_raw_too(), "raw_input_contents is used as well"),
    "shared memory": (with_shared_memory(), "shared memory of clients is not supported"),
    "too few bytes": (raw([bytes(4)]), "input 't' has 4 bytes, but shape [1, 2] of FP32 has 8"),
    "too many tensors": (raw([bytes(8), b""]), "raw_input_contents has 2 entries, inputs 1"),
    "a parameter of another type": (with_wrong_parameter(), "parameters: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_says_what_is_wrong(stub: Any, case: str) -> None:
    request, said = WRONG[case]
    stub.ModelInfer(raw([bytes(8)]))  # so that a like of some is known
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    wanted = grpc.StatusCode.NOT_FOUND if case == "an unknown type" else grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.code(), said in caught.value.details()) == (wanted, True), caught.value.details()


def test_bytes_that_are_no_message_are_refused(server: Server) -> None:
    with grpc.insecure_channel(str(server.head.ports["grpc"])) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_not_there_and_what_is_not_offered(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException) as caught:
        client.infer("none", [linear_input()[1]])
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(utils.InferenceServerException) as caught:
        client.get_system_shared_memory_status()
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_messages_over_the_limit_are_refused_even_when_compressed(server: Server, client: Any) -> None:
    x = np.zeros((server.settings.server.max_body_bytes // 16 + 1, 4), np.float32)
    for compression in (None, "gzip"):
        with pytest.raises(utils.InferenceServerException) as caught:
            client.infer("linear", [given("x", x, "FP32")], compression_algorithm=compression)
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert client.is_server_live()


# --- several at once ------------------------------------------------------------------------------


def test_async_infer_keeps_answers_apart(server: Server, client: Any) -> None:
    x = np.eye(4, dtype=np.float32)
    answers: queue.Queue[tuple[int, Any, Any]] = queue.Queue()

    def keep(place: int) -> Callable[[Any, Any], None]:
        return lambda result, error: answers.put((place, result, error))

    for place, row in enumerate(x):
        client.async_infer("linear", [given("x", row[None], "FP32")], keep(place))
    expected = server.predict("linear", x)["y"]
    for _ in x:
        place, result, error = answers.get(timeout=LIMIT_S)
        assert error is None
        np.testing.assert_allclose(result.as_numpy("y")[0], expected[place], rtol=1e-6)


def test_a_stream_answers_in_order_and_an_error_concerns_its_own_request(server: Server, client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    x = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    for place, row in enumerate(x):
        client.async_stream_infer("linear", [given("x", row[None], "FP32")], request_id=str(place))
        if place == 50:
            client.async_stream_infer("none", [given("x", row[None], "FP32")], request_id="wrong")
    expected = server.predict("linear", x)["y"]
    for place in range(len(x)):
        result, error = answers.get(timeout=LIMIT_S)
        assert error is None
        response = result.get_response()
        assert response.id == str(place)
        assert response.parameters["triton_final_response"].bool_param
        np.testing.assert_allclose(result.as_numpy("y")[0], expected[place], rtol=1e-6)
        if place == 50:
            result, error = answers.get(timeout=LIMIT_S)
            assert "model 'none' is not served here" in str(error)
    client.stop_stream()


def test_the_asyncio_client_works_as_well(server: Server) -> None:
    asyncio.run(_ask_with_asyncio(server))


async def _ask_with_asyncio(server: Server) -> None:
    client = triton_aio.InferenceServerClient(str(server.head.ports["grpc"]))
    x, tensor = linear_input()
    answer = await client.infer("linear", [tensor])
    np.testing.assert_allclose(answer.as_numpy("y"), server.predict("linear", x)["y"], rtol=1e-6)
    await client.close()


# --- deadlines, cancellation, failures ------------------------------------------------------------


def tricky_input(value: int, what: int = 0) -> Any:
    return given("x", np.array([[value, what]], np.float32), "FP32")


def test_what_is_cancelled_or_late_while_it_waits_never_runs(folder: Path) -> None:  # noqa: F811
    with serving(folder) as server:
        service = server.head.engine.service("tricky")
        client = triton.InferenceServerClient(str(server.head.ports["grpc"]))
        done: queue.Queue[Any] = queue.Queue()
        client.async_infer("tricky", [tricky_input(1, HOLD)], lambda result, error: done.put(error))
        let_go = open_gate(folder)
        client.async_infer("tricky", [tricky_input(2)], lambda result, error: done.put(error))  # one ahead
        until(lambda: service.statistics.accepted == 2)
        waiting = client.async_infer("tricky", [tricky_input(3)], lambda result, error: None)
        with pytest.raises(utils.InferenceServerException) as caught:
            client.infer("tricky", [tricky_input(4)], client_timeout=0.5)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        until(lambda: service.statistics.accepted == 4)
        waiting.cancel()
        counts = service.statistics
        until(lambda: counts.cancelled + counts.failed.get("deadline_exceeded", 0) == 2)
        let_go()
        assert [done.get(timeout=LIMIT_S) for _ in range(2)] == [None, None]
        client.close()
    assert executed(folder) == [[1], [2]]


def test_a_stream_that_is_cancelled_takes_its_requests_with_it(folder: Path) -> None:  # noqa: F811
    from tritonclient.grpc import service_pb2_grpc

    with serving(folder) as server, grpc.insecure_channel(str(server.head.ports["grpc"])) as channel:
        service = server.head.engine.service("tricky")
        requests = [tricky_request(1, HOLD), *map(tricky_request, (2, 3, 4))]
        answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests))
        let_go = open_gate(folder)
        until(lambda: service.statistics.accepted == 4)
        answers.cancel()
        until(lambda: service.statistics.cancelled == 4)
        let_go()
    assert {value for batch in executed(folder) for value in batch} <= {1, 2}


def tricky_request(value: int, what: int = 0) -> Any:
    x = np.array([[value, what]], np.float32)
    request = service_pb2.ModelInferRequest(model_name="tricky", raw_input_contents=[x.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    return request


def test_a_thousand_calls_of_a_millisecond_restart_no_worker(tmp_path: Path) -> None:
    with serving(models.slow(tmp_path / "slow.onnx")) as server:
        service = server.head.engine.service("slow")
        client = triton.InferenceServerClient(str(server.head.ports["grpc"]))
        x = np.ones((1, 256), np.float32)
        ended = threading.Semaphore(0)
        for _ in range(1000):
            client.async_infer(
                "slow", [given("x", x, "FP32")], lambda result, error: ended.release(), client_timeout=0.001
            )
        for _ in range(1000):
            assert ended.acquire(timeout=LIMIT_S)
        np.testing.assert_allclose(client.infer("slow", [given("x", x, "FP32")]).as_numpy("y"), x)
        client.close()
        counts = service.statistics
        until(lambda: counts.in_flight() == 0)
        assert counts.worker_deaths == 0
        assert sum(i.life.restarts for i in service.member.instances.values()) == 0
        assert counts.accepted == counts.answered + counts.cancelled + counts.failures


def test_errors_of_the_model_and_a_full_queue(folder: Path) -> None:  # noqa: F811
    with serving(folder) as server:
        client = triton.InferenceServerClient(str(server.head.ports["grpc"]))
        with pytest.raises(utils.InferenceServerException) as caught:
            client.infer("tricky", [tricky_input(1, RAISE)])
        assert (caught.value.status(), "bad item" in caught.value.message()) == ("StatusCode.INTERNAL", True)
        x = np.zeros((9, 2), np.float32)
        with pytest.raises(utils.InferenceServerException) as caught:
            client.infer("tricky", [given("x", x, "FP32")])
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        done: queue.Queue[Any] = queue.Queue()
        client.async_infer("tricky", [tricky_input(1, HOLD)], lambda result, error: done.put(error))
        let_go = open_gate(folder)
        for _ in range(2):  # one ahead in the worker's channel, the others in the queue
            client.async_infer("tricky", [given("x", x[:4], "FP32")], lambda result, error: done.put(error))
        service = server.head.engine.service("tricky")
        until(lambda: service.statistics.accepted == 4)
        with pytest.raises(utils.InferenceServerException) as caught:
            client.infer("tricky", [given("x", x[:8], "FP32")])
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        let_go()
        assert [done.get(timeout=LIMIT_S) for _ in range(3)] == [None] * 3
        client.close()


def test_a_port_that_is_taken_is_said(server: Server, tmp_path: Path) -> None:
    taken = server.head.ports["grpc"]
    settings = Settings(server=ServerSettings(http=None, metrics=None, grpc=taken))
    model = models.linear(tmp_path / "linear.onnx")
    with (
        pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{taken.port} for gRPC"),
        Server([model], cores=1, tune="never", settings=settings, ports=True),
    ):
        os._exit(1)


def test_serve_ends_in_order_with_a_stream_open_and_after_its_worker_was_killed(tmp_path: Path) -> None:
    ports = ["--http", "off", "--metrics", "off", "--management", "off", "--grpc", "127.0.0.1:0"]
    with Serve(str(models.linear(tmp_path / "linear.onnx")), ports=ports) as server:
        client = triton.InferenceServerClient(server.ready()["ports"]["grpc"])
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(2):
            client.async_stream_infer("linear", [linear_input()[1]])
            assert answers.get(timeout=LIMIT_S)[1] is None
            (worker,) = server.workers()
            os.kill(worker, signal.SIGKILL)
        os.kill(server.pid, signal.SIGTERM)
        code, _, err = server.end()
        client.close()
    assert (code, "Traceback" in err, "grpc on 127.0.0.1:" in err) == (0, False, True), err
