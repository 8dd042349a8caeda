"""What every runtime must do: derive a class from `RuntimeConformance`, give it `make`, let pytest run it.

.. code-block:: python

    class TestMyRuntime(RuntimeConformance):
        def make(self, tmp_path):
            return load(LoadRequest(path=..., threads=1, max_batch=8))
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.tensors import DYNAMIC, Signature
from partita.worker.network import Network
from partita.worker.runtimes.interface import Batch, Runtime
from partita.worker.warmup import generated_inputs

_AXIS = 6


class RuntimeConformance:
    """Tests of one loaded network; it must be deterministic, and each item's outputs its own."""

    def make(self, tmp_path: Path) -> Runtime:
        """Return a network loaded for one thread and batches of up to 8."""
        raise NotImplementedError

    def test_the_signature_is_whole(self, tmp_path: Path) -> None:
        """Names are distinct, sizes are positive or dynamic, and the version is stated."""
        runtime = self.make(tmp_path)
        signature = runtime.signature
        assert signature.inputs, "a model has at least one input"
        for specs in (signature.inputs, signature.outputs):
            names = [spec.name for spec in specs]
            assert len(set(names)) == len(names)
            assert all(size == DYNAMIC or size >= 0 for spec in specs for size in spec.shape)
            assert all(len(spec.symbols) in {0, len(spec.shape)} for spec in specs)
        assert signature.fixed_batch is None or (signature.batched and signature.fixed_batch >= 1)
        assert runtime.version

    def test_the_thread_count_is_the_one_asked_for(self, tmp_path: Path) -> None:
        """What the library says of itself, if it says anything, is what `LoadRequest` asked for."""
        assert self.make(tmp_path).threads_seen in {None, 1}

    def test_outputs_are_as_the_signature_says(self, tmp_path: Path) -> None:
        """Names, datatypes, the batch axis and every static size."""
        runtime = self.make(tmp_path)
        for rows in (1, 5):
            outputs = _run(runtime, _batch(runtime.signature, rows), rows)
            specs = runtime.signature.outputs
            assert not specs or list(outputs) == [spec.name for spec in specs]
            for spec in specs:
                shape = _item_shape(outputs[spec.name], runtime.signature, rows)
                assert outputs[spec.name].dtype == spec.datatype.numpy
                assert len(shape) == len(spec.shape)
                assert all(want in {DYNAMIC, got} for want, got in zip(spec.shape, shape, strict=True))

    def test_the_same_batch_gives_the_same_answer(self, tmp_path: Path) -> None:
        """Twice in a row, and after another batch size."""
        runtime = self.make(tmp_path)
        batch = _batch(runtime.signature, 4)
        first = {name: array.copy() for name, array in _run(runtime, batch, 4).items()}
        _run(runtime, _batch(runtime.signature, 1), 1)
        _assert_close(_run(runtime, batch, 4), first)

    def test_an_item_is_answered_the_same_alone_and_in_a_batch(self, tmp_path: Path) -> None:
        """Rows do not mix; this is what lets items of different clients share a batch."""
        runtime = self.make(tmp_path)
        if not runtime.signature.batched:
            return
        batch = _batch(runtime.signature, 5)
        together = _run(runtime, batch, 5)
        for row in range(5):
            alone = _run(runtime, {name: array[row : row + 1] for name, array in batch.items()}, 1)
            _assert_close(alone, {name: array[row : row + 1] for name, array in together.items()})

    def test_inputs_may_be_read_only_and_are_not_kept(self, tmp_path: Path) -> None:
        """Memory is used again for other items as soon as the outputs are written."""
        runtime = self.make(tmp_path)
        batch = _batch(runtime.signature, 2)
        before = {name: array.copy() for name, array in _run(runtime, batch, 2).items()}
        copies = {name: array.copy() for name, array in batch.items()}
        _run(runtime, copies, 2)
        for array in copies.values():
            array[...] = b"" if array.dtype.kind == "O" else 0
        _assert_close(_run(runtime, batch, 2), before)

    def test_a_failed_execution_leaves_it_usable(self, tmp_path: Path) -> None:
        """Bad inputs raise, and the next batch is answered."""
        runtime = self.make(tmp_path)
        batch = _batch(runtime.signature, 2)
        before = {name: array.copy() for name, array in _run(runtime, batch, 2).items()}
        try:
            runtime.infer({"no such input": np.zeros((2, 1), np.float32)})
        except Exception:
            _assert_close(_run(runtime, batch, 2), before)
        else:
            raise AssertionError("inputs of another name must raise")

    def test_no_python_thread_is_left_running(self, tmp_path: Path) -> None:
        """A worker is one loop; threads of the native library are its own affair."""
        before = threading.active_count()
        runtime = self.make(tmp_path)
        _run(runtime, _batch(runtime.signature, 2), 2)
        assert threading.active_count() == before


def _batch(signature: Signature, rows: int) -> Batch:
    names = {symbol: _AXIS for spec in signature.inputs for symbol in (*spec.symbols, "")}
    batch = generated_inputs(signature, rows, names)
    for name, array in batch.items():
        if array.dtype.kind == "f" and signature.batched:
            distinct = array + np.arange(rows, dtype=array.dtype).reshape(-1, *[1] * (array.ndim - 1))
            distinct.flags.writeable = False
            batch[name] = distinct
    return batch


def _run(runtime: Runtime, batch: Batch, rows: int) -> Batch:
    return Network(runtime.infer, runtime.signature).run(batch, rows, rows)


def _item_shape(array: NDArray[Any], signature: Signature, rows: int) -> tuple[int, ...]:
    if not signature.batched:
        return array.shape
    assert array.shape[:1] == (rows,), f"{array.shape} for {rows} items"
    return array.shape[1:]


def _assert_close(got: Batch, want: Batch) -> None:
    assert set(got) == set(want)
    for name, array in want.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], array, err_msg=name)
