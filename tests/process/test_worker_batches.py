"""Batches through a real worker process: every way in which items lie in memory and are executed."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import pytest

from partita.core.errors import ConnectionClosed
from partita.core.tensors import DataType, TensorSpec
from partita.system.cpus import allowed_cpus
from partita.wire.messages import BatchDone
from partita.worker.elements import pack_elements
from tests import models
from tests.worker_driver import WorkerDriver, worker

pytestmark = pytest.mark.process

WEIGHT, BIAS = models.linear_weights()
RNG = np.random.default_rng(3)


def items(rows: int) -> models.Float32:
    return RNG.standard_normal((rows, 4)).astype(np.float32)


def expected(x: models.Float32) -> models.Float32:
    return x @ WEIGHT + BIAS


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerDriver]:
    path = models.linear(tmp_path_factory.mktemp("linear") / "model.onnx")
    with worker(path) as driver:
        driver.start()
        yield driver


def test_ready_says_what_the_model_is(linear: WorkerDriver) -> None:
    ready = linear.ready
    assert ready is not None
    assert ready.signature.inputs == (TensorSpec("x", DataType.FP32, (4,)),)
    assert ready.signature.outputs == (TensorSpec("y", DataType.FP32, (3,)),)
    assert (ready.signature.batched, ready.signature.fixed_batch) == (True, None)
    assert ready.threads_seen == 1
    assert ready.load_s > 0
    assert ready.resident_bytes > 10 << 20
    assert ready.warnings == ()


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_one_chunk(linear: WorkerDriver, rows: int) -> None:
    x = items(rows)
    (y,) = linear.run([x])
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)


def test_several_chunks_are_joined_in_order(linear: WorkerDriver) -> None:
    x = items(6)
    (y,) = linear.run([x[:1]], [x[1:4]], [x[4:]])
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)


@pytest.mark.parametrize("executions", [(), (6,), (8,), (4, 2), (4, 4), (2, 2, 2), (1,) * 6, (4,), (6, 6)])
def test_executions_give_the_same_answer(linear: WorkerDriver, executions: tuple[int, ...]) -> None:
    x = items(6)
    (y,) = linear.run([x[:5]], [x[5:]], executions=executions)
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)


def test_slots_do_not_overlap(linear: WorkerDriver) -> None:
    batches = [items(8) for _ in range(3)]
    free_ns = perf_counter_ns()
    for slot, x in enumerate(batches):
        linear.execute([x], slot=slot)
    done = [linear.receive() for _ in batches]
    for message, x in zip(done, batches, strict=True):
        assert isinstance(message, BatchDone)
        assert 0 < message.infer_ns <= message.total_ns
        assert free_ns <= message.begun_ns, (
            "the clock is that of all processes, one batch comes after another"
        )
        free_ns = message.begun_ns + message.total_ns
        assert free_ns <= perf_counter_ns()
        np.testing.assert_allclose(linear.read(message)[0], expected(x), rtol=1e-5)


def test_a_batch_beyond_the_slot_moves_it_to_new_space_and_back_to_back_batches_stay_right(
    tmp_path: Path,
) -> None:
    with worker(models.linear(tmp_path / "m.onnx", outputs=3), max_batch=1) as driver:
        before = driver.start().output_arena_bytes
        x = items(2000)
        (y,) = driver.run([x], slot=1)
        np.testing.assert_allclose(y, expected(x), rtol=1e-4, atol=1e-5)
        assert driver.outputs is not None
        assert driver.outputs.nbytes > before
        for slot in (0, 1, 2, 1):
            x = items(1500)
            np.testing.assert_allclose(driver.run([x], slot=slot)[0], expected(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [1, 4])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 9])
def test_a_frozen_batch_is_padded_up_and_cut(tmp_path: Path, frozen: int, rows: int) -> None:
    with worker(models.fixed_linear(tmp_path / "m.onnx", frozen), max_batch=4) as driver:
        assert driver.start().signature.fixed_batch == frozen
        x = items(rows)
        np.testing.assert_allclose(driver.run([x])[0], expected(x), rtol=1e-5)


def test_two_inputs_with_whole_numbers(tmp_path: Path) -> None:
    with worker(models.two_inputs(tmp_path / "m.onnx")) as driver:
        specs = {spec.name: (spec.datatype, spec.shape) for spec in driver.start().signature.inputs}
        assert specs == {"x": (DataType.FP32, (4,)), "index": (DataType.INT64, ())}
        x, index = items(5), np.array([3, 0, 15, 7, 3], dtype=np.int64)
        y, twice = driver.run([x[:2], index[:2]], [x[2:], index[2:]], executions=(2, 2, 1))
        np.testing.assert_allclose(y, x + models.two_inputs_table()[index], rtol=1e-5)
        np.testing.assert_array_equal(twice, 2 * index)


def test_dynamic_shapes_come_with_the_batch(tmp_path: Path) -> None:
    with worker(models.sequence_sum(tmp_path / "m.onnx"), dimensions={"length": 5}) as driver:
        (spec,) = driver.start().signature.inputs
        assert (spec.shape, spec.symbols) == ((-1, 4), ("length", ""))
        for length in (1, 7, 200):
            x = RNG.standard_normal((3, length, 4)).astype(np.float32)
            total, doubled = driver.run([x[:1]], [x[1:]], shapes=((length, 4),))
            np.testing.assert_allclose(total, x.sum(axis=1), rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(doubled, x + x)


def test_a_model_without_a_batch_axis_takes_one_item(tmp_path: Path) -> None:
    with worker(models.unbatched(tmp_path / "m.onnx")) as driver:
        signature = driver.start().signature
        assert signature.batched is False
        assert signature.inputs == (TensorSpec("x", DataType.FP32, (4,)),)
        x = items(1)
        (y,) = driver.run([x])
        np.testing.assert_array_equal(y, 2 * x[0])


def test_texts_go_in_and_out_packed(tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(
        "import numpy as np\n"
        "class Shout:\n"
        "    inputs = {'text': {'shape': [-1, 2], 'datatype': 'BYTES'}}\n"
        "    def infer(self, batch):\n"
        "        text = batch['text']\n"
        "        loud = np.array([[e.upper() for e in row] for row in text], dtype=object)\n"
        "        return {'loud': loud, 'size': np.array([len(b''.join(row)) for row in text])}\n"
    )
    with worker(f"{tmp_path}/texts.py:Shout", runtime="python") as driver:
        outputs = driver.start().signature.outputs
        assert outputs[0] == TensorSpec("loud", DataType.BYTES, (2,))
        assert outputs[1] == TensorSpec("size", DataType.INT64, ())
        first = np.array([["a", "größe"]], dtype=object)
        second = np.array([["", "x" * 5000]], dtype=object)
        sizes = tuple((len(pack_elements(one)),) for one in (first, second))
        loud, size = driver.run([first], [second], shapes=((2,),), sizes=sizes, executions=(1, 1))
        shouted = [b"A", "größe".encode().upper(), b"", b"X" * 5000]
        assert loud == pack_elements(np.array(shouted, dtype=object))
        np.testing.assert_array_equal(size, [8, 5000])


def test_inputs_are_read_in_place_and_read_only(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "class Model:\n"
        "    inputs = {'x': {'shape': [-1, 4], 'datatype': 'FP32'}}\n"
        "    outputs = {'y': {'shape': [-1, 4], 'datatype': 'FP32'}}\n"
        "    def infer(self, batch):\n"
        "        x = batch['x']\n"
        "        assert not x.flags.writeable\n"
        "        assert not x.flags.owndata\n"
        "        return {'y': x}\n"
    )
    with worker(f"{tmp_path}/m.py:Model", runtime="python") as driver:
        driver.start()
        x = items(8)
        np.testing.assert_array_equal(driver.run([x])[0], x)


def test_threads_sit_on_the_cores_given(tmp_path: Path) -> None:
    core = max(allowed_cpus())
    with worker(models.mlp(tmp_path / "m.onnx"), threads=2, cores=[core]) as driver:
        ready = driver.start()
        assert ready.threads_seen == 2
        assert ready.pinned
        driver.run([np.zeros((8, 64), np.float32)])
        tasks = list(Path(f"/proc/{driver.process.pid}/task").iterdir())
        allowed = {
            line.split()[1]
            for task in tasks
            for line in (task / "status").read_text().splitlines()
            if line.startswith("Cpus_allowed_list")
        }
        assert allowed == {str(core)}


def test_cores_that_are_refused_are_a_warning_and_it_serves(tmp_path: Path) -> None:
    with worker(models.linear(tmp_path / "m.onnx"), cores=[9999]) as driver:
        ready = driver.start()
        assert not ready.pinned
        x = items(2)
        np.testing.assert_allclose(driver.run([x])[0], expected(x), rtol=1e-5)


def test_thread_variables_are_set_before_numeric_imports(tmp_path: Path) -> None:
    """The blas threads of numpy, as numpy itself sees them, are those that `Start` says."""
    (tmp_path / "m.py").write_text(
        "import os, numpy as np, threadpoolctl\n"
        "class Model:\n"
        "    inputs = {'x': {'shape': [-1, 1], 'datatype': 'FP32'}}\n"
        "    def infer(self, batch):\n"
        "        seen = max(p['num_threads'] for p in threadpoolctl.threadpool_info())\n"
        "        told = int(os.environ['OMP_NUM_THREADS'])\n"
        "        n = len(batch['x'])\n"
        "        return {'seen': np.full((n, 2), [seen, told])}\n"
    )
    for threads in (1, 2):
        with worker(f"{tmp_path}/m.py:Model", runtime="python", threads=threads) as driver:
            assert driver.start().threads_seen == threads
            np.testing.assert_array_equal(driver.run([np.zeros((1, 1), np.float32)])[0], [[threads] * 2])


def test_stop_ends_it_after_the_batches_before(tmp_path: Path) -> None:
    with worker(models.linear(tmp_path / "m.onnx")) as driver:
        driver.start()
        x = items(4)
        driver.execute([x])
        assert driver.stop() == 0
        message = driver.receive()
        assert isinstance(message, BatchDone)
        np.testing.assert_allclose(driver.read(message)[0], expected(x), rtol=1e-5)
        with pytest.raises(ConnectionClosed):
            driver.receive()
