"""The engine inside a program: what it answers, how it fails, and that nothing of it stays."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import partita
from partita.core.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    PayloadTooLarge,
    ShuttingDown,
)
from partita.core.tensors import DataType, Signature, TensorSpec
from partita.embedded import Server, prepare
from partita.engine.service import ServiceState
from partita.settings import ModelSettings, ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.engine_driver import HOLD, LIMIT_S, RAISE, executed, make_gate, tricky

pytestmark = pytest.mark.e2e

ECHO = """
    class Echo:
        inputs = {"t": {"shape": [-1, 2], "datatype": "BYTES"}}
        outputs = {"t": {"shape": [-1, 2], "datatype": "BYTES"}}

        def infer(self, batch):
            return {"t": batch["t"]}
"""


def linear(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    weight, bias = models.linear_weights()
    result: np.ndarray[Any, Any] = x @ weight + bias
    return result


def items(*values: int, what: int = 0) -> np.ndarray[Any, Any]:
    return np.array([[value, what] for value in values], np.float32)


def tricky_folder(parent: Path) -> Path:
    """Write `Tricky` as a model folder of its name, with its gate."""
    folder = parent / "tricky"
    tricky(folder)
    (folder / "model.py").rename(folder / "handler.py")
    make_gate(folder)
    return folder


def until(condition: Callable[[], object]) -> None:
    """Wait for what the server's thread brings about."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def gate(folder: Path) -> int:
    """Wait until a batch with `HOLD` executes; closing what is returned lets it go on."""
    fds: list[int] = []

    def opened() -> bool:
        with contextlib.suppress(OSError):  # nobody reads yet
            fds.append(os.open(folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
        return bool(fds)

    until(opened)
    return fds[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "echo").mkdir()
    (folder / "echo" / "handler.py").write_text(dedent(ECHO), encoding="utf-8")
    paths = [
        models.linear(folder / "linear.onnx"),
        models.two_inputs(folder / "two.onnx"),
        models.unbatched(folder / "alone.onnx"),
        folder / "echo",
    ]
    settings = Settings(model={"linear": ModelSettings(queue_size=64)})
    with Server(paths, cores=1, tune="never", settings=settings) as running:
        yield running


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server of `Tricky` alone, and its folder."""
    folder = tricky_folder(tmp_path)
    settings = Settings(model={"tricky": ModelSettings(max_batch=1)})
    with Server([folder], cores=1, tune="never", settings=settings) as running:
        yield running, folder


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 33, 64])
def test_an_array_or_a_mapping(server: Server, count: int) -> None:
    x = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
    for inputs in (x, {"x": x}, np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2]):
        outputs = server.predict("linear", inputs)
        assert list(outputs) == ["y"]
        np.testing.assert_allclose(outputs["y"], linear(x), rtol=1e-4, atol=1e-5)


def test_an_answer_is_the_callers_own(server: Server) -> None:
    first = server.predict("linear", np.ones((1, 4), np.float32))["y"]
    first[:] = 7
    assert not (server.predict("linear", np.ones((1, 4), np.float32))["y"] == 7).any()


def test_several_inputs_and_outputs(server: Server) -> None:
    x, index = np.ones((3, 4), np.float32), np.array([2, 0, 15])
    outputs = server.predict("two", {"index": index, "x": x})
    np.testing.assert_array_equal(outputs["y"], x + models.two_inputs_table()[index])
    np.testing.assert_array_equal(outputs["twice"], 2 * index)


def test_a_model_without_a_batch_axis(server: Server) -> None:
    np.testing.assert_array_equal(server.predict("alone", np.arange(4, dtype=np.float32))["y"], [0, 2, 4, 6])


@pytest.mark.parametrize(
    "given",
    [[[b"\xff\0", b""], [b"abc", b"d"]], np.array([["é", ""], ["abc", "d"]]), np.array([[b"a", b"b"]])],
)
def test_strings(server: Server, given: Any) -> None:
    answer = server.predict("echo", given)["t"]
    expected = [[v.encode() if isinstance(v, str) else bytes(v) for v in row] for row in given]
    assert answer.tolist() == expected


def test_many_at_once_from_a_loop_and_from_threads(server: Server) -> None:
    rows = np.random.default_rng(3).standard_normal((60, 1, 4)).astype(np.float32)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(server.apredict("linear", row) for row in rows))

    with ThreadPoolExecutor(8) as threads:
        both = [asyncio.run(ask()), list(threads.map(lambda row: server.predict("linear", row), rows))]
    for answers in both:
        for row, outputs in zip(rows, answers, strict=True):
            np.testing.assert_allclose(outputs["y"], linear(row), rtol=1e-4, atol=1e-5)


# --- errors ---------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("none", np.ones((1, 4), np.float32), ModelNotFound, "none"),
    ("linear", np.ones((1, 4)), InvalidRequest, "has datatype FP64; the model wants FP32"),
    ("linear", np.ones((1, 5), np.float32), InvalidRequest, r"has shape \[1, 5\]; the model wants \[-1, 4\]"),
    ("linear", np.ones(4, np.float32), InvalidRequest, r"has shape \[4\]"),
    ("linear", np.ones((0, 4), np.float32), InvalidRequest, "no items"),
    ("linear", np.float32(1), InvalidRequest, r"has shape \[\]"),
    ("linear", {"z": np.ones((1, 4), np.float32)}, InvalidRequest, "unexpected input 'z'"),
    ("linear", {}, InvalidRequest, "input 'x' is missing"),
    ("linear", np.array([["2020-01-01"] * 4], "M8[D]"), InvalidRequest, "dtype datetime64"),
    ("linear", np.ones((65, 4), np.float32), PayloadTooLarge, "queue_size = 64"),
    ("two", np.ones((1, 4), np.float32), InvalidRequest, "several inputs, give them by name: x, index"),
    (
        "two",
        {"x": np.ones((1, 4), np.float32), "index": np.array([99])},
        InferenceFailed,
        "out of data bounds",
    ),
]


@pytest.mark.parametrize(("model", "inputs", "error", "said"), WRONG)
def test_what_does_not_fit_is_told(
    server: Server, model: str, inputs: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        server.predict(model, inputs)
    with pytest.raises(error, match=said):
        asyncio.run(server.apredict(model, inputs))


def test_a_model_that_raises_fails_its_request_alone(held: tuple[Server, Path]) -> None:
    server, _ = held
    good, bad = server.submit("tricky", items(1)), server.submit("tricky", items(2, what=RAISE))
    with pytest.raises(InferenceFailed, match="bad item"):
        bad.result(LIMIT_S)
    np.testing.assert_array_equal(good.result(LIMIT_S)["y"][0, 0], 3)


def test_a_timeout_is_a_deadline(held: tuple[Server, Path]) -> None:
    server, folder = held
    running = [server.submit("tricky", items(1, what=HOLD)), server.submit("tricky", items(2))]
    opened = gate(folder)
    with pytest.raises(DeadlineExceeded):
        server.predict("tricky", items(3), timeout_s=0.02)
    os.close(opened)
    assert [f.result(LIMIT_S)["y"][0, 0] for f in running] == [3, 5]
    server.predict("tricky", items(4))
    assert executed(folder) == [[1], [2], [4]]


def test_a_cancelled_request_is_not_executed(held: tuple[Server, Path]) -> None:
    server, folder = held
    counts = server.head.engine.service("tricky").statistics
    asked = [server.submit("tricky", items(1, what=HOLD))]
    opened = gate(folder)
    asked += [server.submit("tricky", items(n)) for n in (2, 3, 4)]  # 2 waits in the worker's channel
    until(lambda: counts.accepted == 4)
    for cancelled in (asked[0], asked[2]):
        assert cancelled.cancel()
        with pytest.raises(CancelledError):
            cancelled.result(LIMIT_S)
    until(lambda: counts.cancelled == 2)
    os.close(opened)
    assert [f.result(LIMIT_S)["y"][0, 0] for f in (asked[1], asked[3])] == [5, 9]
    assert executed(folder) == [[1], [2], [4]]


def test_a_request_that_is_cancelled_at_once_is_perhaps_never_accepted(server: Server) -> None:
    counts = server.head.engine.service("linear").statistics
    for _ in range(100):
        server.submit("linear", np.ones((1, 4), np.float32)).cancel()
    server.predict("linear", np.ones((1, 4), np.float32))
    until(lambda: counts.in_flight() == 0)


# --- life -----------------------------------------------------------------------------------------


def test_stop_answers_what_was_accepted(tmp_path: Path) -> None:
    folder = tricky_folder(tmp_path)
    server = Server([folder], cores=1, tune="never")
    server.start()
    accepted = [server.submit("tricky", items(1, what=HOLD))]
    opened = gate(folder)
    accepted += [server.submit("tricky", items(n)) for n in (2, 3)]
    with ThreadPoolExecutor(1) as threads:
        stopping = threads.submit(server.stop)
        service = server.head.engine.service("tricky")
        until(lambda: service.state is ServiceState.DRAINING)
        with pytest.raises(ShuttingDown):
            server.predict("tricky", items(4))
        os.close(opened)
        stopping.result(LIMIT_S)
    assert [f.result(0)["y"][0, 0] for f in accepted] == [3, 5, 7]


def test_stop_twice_and_start_again(tmp_path: Path) -> None:
    x = np.ones((1, 4), np.float32)
    server = Server([models.linear(tmp_path / "linear.onnx")], cores=1, tune="never")
    server.stop()
    for _ in range(2):
        server.start()
        np.testing.assert_allclose(server.predict("linear", x)["y"], linear(x), rtol=1e-4)
        with pytest.raises(RuntimeError, match="already running"):
            server.start()
        server.stop()
        server.stop()
        with pytest.raises(RuntimeError, match="not running"):
            server.predict("linear", x)


def test_a_model_that_cannot_be_loaded_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no network")
    good = models.linear(tmp_path / "linear.onnx")
    with (
        pytest.raises(ModelUnavailable, match="'broken' could not be loaded"),
        Server([good, broken], cores=1, tune="never"),
    ):
        pass


def test_a_port_that_is_taken_leaves_nothing(tmp_path: Path) -> None:
    good = models.linear(tmp_path / "linear.onnx")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(server=ServerSettings(http=Address("127.0.0.1", port), metrics=None))
        server = Server([good], cores=1, tune="never", settings=settings, ports=True)
        with pytest.raises(InvalidInput, match=f"cannot listen on 127.0.0.1:{port}"):
            server.start()


def test_an_exception_in_the_block_stops_the_server(tmp_path: Path) -> None:
    good = models.linear(tmp_path / "linear.onnx")
    with pytest.raises(ZeroDivisionError), Server([good], cores=1, tune="never"):
        raise ZeroDivisionError


# --- the package ----------------------------------------------------------------------------------


def test_the_package_gives_what_it_promises() -> None:
    from partita import api, offline

    assert (partita.Server, partita.predict, partita.plan) == (Server, offline.predict, api.plan)
    assert sorted(partita.__all__) == ["Server", "plan", "predict"]
    with pytest.raises(AttributeError, match="no attribute 'serve'; it has Server, plan, predict"):
        _ = partita.serve


@pytest.mark.parametrize("module", ["partita", "partita.worker.loop"])
def test_importing_the_package_imports_no_server(module: str) -> None:
    code = f"import {module}, sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    unwanted = {"partita.embedded", "partita.head", "partita.planning", "starlette", "uvloop", "asyncio"}
    assert not loaded & unwanted
    assert module != "partita" or "numpy" not in loaded


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_predict_takes_a_file(tmp_path: Path, suffix: str) -> None:
    x = np.random.default_rng(9).standard_normal((300, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    model = models.linear(tmp_path / "linear.onnx")
    outputs = partita.predict(model, tmp_path / f"x.{suffix}", cores=1, tune="never")
    np.testing.assert_allclose(outputs["y"], linear(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match="cannot read"):
        partita.predict(model, tmp_path / f"y.{suffix}")


def test_inputs_are_copied_unless_told_otherwise_and_a_mapped_file_always(tmp_path: Path) -> None:
    signature = Signature(inputs=(TensorSpec("x", DataType.FP32, (4,)),), outputs=())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    x.flags.writeable = False
    np.save(tmp_path / "x.npy", x)
    mapped = np.asarray(np.load(tmp_path / "x.npy", mmap_mode="r"))
    cases = [(x, True, False), (x, False, True), (x[:, ::-1], False, False), (mapped[:1], False, False)]
    for array, copy, shares in cases:
        _, (buffer,) = prepare(signature, array, copy=copy)
        assert bytes(buffer) == np.ascontiguousarray(array).tobytes()
        assert np.shares_memory(np.frombuffer(buffer, np.float32), array) == shares
