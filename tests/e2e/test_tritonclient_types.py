"""Every datatype through the real `tritonclient.http`, and what it is told when it asks for what is not."""

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
    paths = [models.two_inputs(folder / "two.onnx"), *(echo(folder, d) for d in (*NUMBERS, "BYTES"))]
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
    for datatype in (*NUMBERS, "BYTES"):
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
