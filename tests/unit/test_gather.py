"""The items of a batch, found in X: in place where they lie together, joined where they do not."""

import numpy as np

from partita.core.tensors import DataType, Signature, TensorSpec
from partita.wire.messages import Chunk, Execute
from partita.worker.gather import Gather

X = TensorSpec(name="x", datatype=DataType.FP32, shape=(2,))
Z = TensorSpec(name="z", datatype=DataType.FP32, shape=())
SIGNATURE = Signature(inputs=(X, Z), outputs=(X,))


def arena(rows: int) -> tuple[memoryview, np.ndarray, np.ndarray]:
    """Return memory with `rows` items: both numbers of x of each of them first, then each z."""
    x = np.arange(2 * rows, dtype=np.float32)
    z = -np.arange(rows, dtype=np.float32)
    return memoryview(x.tobytes() + z.tobytes()), x.reshape(rows, 2), z


def chunk(first: int, rows: int, *, of: int) -> Chunk:
    return Chunk(rows, (first * 8, of * 8 + first * 4))


def test_executions_of_one_batch_read_in_place_and_are_joined_only_across_chunks() -> None:
    memory, x, z = arena(20)
    chunks = (chunk(2, 5, of=20), chunk(10, 4, of=20), chunk(7, 1, of=20))
    order = [2, 3, 4, 5, 6, 10, 11, 12, 13, 7]
    sizes = [3, 4, 2, 1]
    gather = Gather(memory, SIGNATURE)
    parts = list(gather.parts(Execute(1, 0, chunks), sizes))
    assert [rows for _, rows in parts] == sizes
    np.testing.assert_array_equal(np.concatenate([part["x"] for part, _ in parts]), x[order])
    np.testing.assert_array_equal(np.concatenate([part["z"] for part, _ in parts]), z[order])
    where = np.frombuffer(memory, np.uint8)
    in_place = [np.shares_memory(part["x"], where) for part, _ in parts]
    assert in_place == [True, False, True, True]


def test_open_shapes_are_gathered_as_a_whole() -> None:
    memory, x, _ = arena(6)
    gather = Gather(
        memory, Signature(inputs=(TensorSpec(name="x", datatype=DataType.FP32, shape=(-1,)),), outputs=(X,))
    )
    message = Execute(1, 0, (Chunk(2, (0,)), Chunk(3, (24,))), ((2,),))
    parts = list(gather.parts(message, [4, 1]))
    np.testing.assert_array_equal(np.concatenate([part["x"] for part, _ in parts]), x[[0, 1, 3, 4, 5]])
