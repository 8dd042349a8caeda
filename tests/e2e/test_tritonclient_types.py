"""Every datatype through the real `tritonclient.http`, and what it is told when it asks for what is not."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from partita.embedded import Server
from partita.settings import ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.e2e.test_serve import open_gate, until
from tests.engine_driver import HOLD, executed, make_gate, tricky

triton = pytest.importorskip("tritonclient.http")
errors = pytest.importorskip("tritonclient.utils")

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore::DeprecationWarning:gevent")]

NUMBERS = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
ECHO = """
    class Echo:
        inputs = {{"t": {{"shape": [-1, 2], "datatype": "{datatype}"}}}}
        outputs = {{"t": {{"shape": [-1, 2], "datatype": "{datatype}"}}}}

        def infer(self, batch):
            return {{"t": batch["t"]}}
"""


def echo(parent: Path, datatype: str) -> Path:
    folder = parent / f"echo_{datatype.lower()}"
    folder.mkdir()
    (folder / "handler.py").write_text(dedent(ECHO).format(datatype=datatype), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    paths = [models.two_inputs(folder / "two.onnx"), models.sequence_sum(folder / "sequence.onnx")]
    paths += [echo(folder, d) for d in (*NUMBERS, "BF16", "BYTES")]
    settings = Settings(server=ServerSettings(http=Address("127.0.0.1", 0), metrics=None))
    with Server(paths, cores=1, tune="never", settings=settings, ports=True) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    made = triton.InferenceServerClient(str(server.head.ports["http"]))
    yield made
    made.close()


def given(name: str, array: np.ndarray[Any, Any], datatype: str, *, binary: bool = True) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def extremes(datatype: str) -> np.ndarray[Any, Any]:
    dtype: Any = np.dtype(NUMBERS[datatype])
    if dtype.kind == "b":
        return np.array([[True, False]])
    info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return np.array([[info.min, info.max]], dtype)


@pytest.mark.parametrize(
    ("datatype", "binary"),
    [(d, binary) for d in NUMBERS for binary in (True, False) if binary or d != "FP16"],  # not in JSON
)
def test_numbers_to_their_limits(client: Any, datatype: str, binary: bool) -> None:
    x = extremes(datatype)
    wanted = [triton.InferRequestedOutput("t", binary_data=binary)]
    answer = client.infer(
        f"echo_{datatype.lower()}", [given("t", x, datatype, binary=binary)], outputs=wanted
    )
    got = answer.as_numpy("t")
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("binary", [True, False])
def test_strings(client: Any, binary: bool) -> None:
    x = np.array([["é", ""], ["a" * 1000, "b"]], object)
    wanted = [triton.InferRequestedOutput("t", binary_data=binary)]
    answer = client.infer("echo_bytes", [given("t", x, "BYTES", binary=binary)], outputs=wanted)
    got = [v if isinstance(v, str) else v.decode() for v in answer.as_numpy("t").ravel()]
    assert got == x.ravel().tolist()


def test_bf16_as_the_client_packs_it(client: Any) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.array([[1.5, -2.0], [0.0, 256.0]], bfloat16)
    answer = client.infer("echo_bf16", [given("t", x, "BF16")])
    assert answer.get_output("t")["datatype"] == "BF16"
    np.testing.assert_array_equal(answer.as_numpy("t"), x)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_items_of_no_elements(client: Any, binary_in: bool, binary_out: bool) -> None:
    x = np.zeros((2, 0, 4), np.float32)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("total", "doubled")]
    answer = client.infer("sequence", [given("x", x, "FP32", binary=binary_in)], outputs=wanted)
    np.testing.assert_array_equal(answer.as_numpy("total"), np.zeros((2, 4), np.float32))
    assert answer.get_output("doubled")["shape"] == [2, 0, 4]


def test_the_asyncio_client_works_as_well(server: Server) -> None:
    aio = pytest.importorskip("tritonclient.http.aio")

    async def ask() -> list[Any]:
        async with aio.InferenceServerClient(str(server.head.ports["http"])) as client:
            assert await client.is_server_ready()
            inputs = [np.full((1, 2), k, np.int32) for k in range(8)]
            asked = [client.infer("echo_int32", [given("t", x, "INT32")]) for x in inputs]
            return [answer.as_numpy("t").tolist() for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [[[k, k]] for k in range(8)]


def test_an_asyncio_client_that_cancels_while_it_waits_is_never_executed(tmp_path: Path) -> None:
    aio = pytest.importorskip("tritonclient.http.aio")
    tricky(tmp_path / "tricky")
    (tmp_path / "tricky" / "model.py").rename(tmp_path / "tricky" / "handler.py")
    (tmp_path / "tricky" / "partita.toml").write_text("[model.tricky]\nmax_batch = 1\n", encoding="utf-8")
    make_gate(tmp_path / "tricky")
    settings = Settings(server=ServerSettings(http=Address("127.0.0.1", 0), metrics=None))

    async def ask(server: Server) -> None:
        counts = server.head.engine.service("tricky").statistics
        async with aio.InferenceServerClient(str(server.head.ports["http"]), conn_limit=8) as client:

            async def one(value: int, what: int = 0) -> Any:
                x = np.array([[value, what]], np.float32)
                return await client.infer("tricky", [given("x", x, "FP32")])

            held = asyncio.create_task(one(1, HOLD))
            let_go = await asyncio.to_thread(open_gate, tmp_path / "tricky")
            ahead = asyncio.create_task(one(2))
            await asyncio.to_thread(until, lambda: counts.accepted == 2)
            waiting = asyncio.create_task(one(3))
            await asyncio.to_thread(until, lambda: counts.accepted == 3)
            waiting.cancel()
            await asyncio.to_thread(until, lambda: counts.cancelled == 1)
            let_go()
            for task in (held, ahead):
                assert (await task).as_numpy("y") is not None
            assert waiting.cancelled()

    with Server([tmp_path / "tricky"], cores=1, tune="never", settings=settings, ports=True) as server:
        asyncio.run(ask(server))
    assert executed(tmp_path / "tricky") == [[1], [2]]


def test_a_subset_of_the_outputs(client: Any) -> None:
    tensors = [given("x", np.ones((1, 4), np.float32), "FP32"), given("index", np.array([3]), "INT64")]
    answer = client.infer("two", tensors, outputs=[triton.InferRequestedOutput("twice")])
    assert answer.as_numpy("twice").tolist() == [6]
    assert answer.as_numpy("y") is None


WRONG: dict[str, tuple[str, str, Any, str]] = {
    "an unknown model": ("none", "t", extremes("FP32"), "none"),
    "an unknown input": (
        "echo_fp32",
        "q",
        extremes("FP32"),
        "unexpected input 'q'; the model's inputs are t",
    ),
    "another datatype": ("echo_fp64", "t", extremes("FP32"), "has datatype FP32; the model wants FP64"),
    "another shape": (
        "echo_fp32",
        "t",
        np.ones((1, 3), np.float32),
        "has shape [1, 3]; the model wants [-1, 2]",
    ),
    "another rank": ("echo_fp32", "t", np.ones(2, np.float32), "has shape [2]; the model wants [-1, 2]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_client_shows_what_is_wrong(client: Any, case: str) -> None:
    model, name, x, said = WRONG[case]
    with pytest.raises(errors.InferenceServerException) as caught:
        client.infer(model, [given(name, x, "FP32")])
    assert said in caught.value.message()
    assert caught.value.status() in ("400", "404")


def test_an_unknown_output_and_an_unknown_version(client: Any) -> None:
    tensor = given("t", extremes("FP32"), "FP32")
    with pytest.raises(errors.InferenceServerException, match="unexpected output 'w'"):
        client.infer("echo_fp32", [tensor], outputs=[triton.InferRequestedOutput("w")])
    with pytest.raises(errors.InferenceServerException) as caught:
        client.infer("echo_fp32", [tensor], model_version="9")
    assert caught.value.status() == "404"


def test_metadata_and_configuration_name_every_datatype(client: Any) -> None:
    for datatype in (*NUMBERS, "BF16", "BYTES"):
        model = f"echo_{datatype.lower()}"
        metadata, config = client.get_model_metadata(model), client.get_model_config(model)
        for which, kind in (("inputs", "input"), ("outputs", "output")):
            assert metadata[which] == [{"name": "t", "datatype": datatype, "shape": [-1, 2]}]
            expected = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
            assert config[kind] == [{"name": "t", "data_type": expected, "dims": [2]}]


def test_readiness_of_what_there_is_and_what_there_is_not(client: Any) -> None:
    assert client.is_model_ready("two")
    assert client.is_model_ready("two", "1")
    assert not client.is_model_ready("two", "9")
    assert not client.is_model_ready("none")
