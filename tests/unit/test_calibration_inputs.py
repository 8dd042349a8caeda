"""Items to measure with, given or made up; and hashes of models."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from partita.core.errors import InvalidInput
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.profiling.identity import model_hash
from partita.profiling.inputs import calibration, load_samples, packed, rows
from partita.system.model_files import files_beside
from partita.worker.elements import unpack_elements
from tests import models


def signature(*specs: TensorSpec) -> Signature:
    return Signature(inputs=specs, outputs=())


@pytest.mark.parametrize("datatype", list(DataType))
def test_items_of_every_datatype_are_made_up(datatype: DataType) -> None:
    items = calibration(signature(TensorSpec("x", datatype, (2, 3)))).items["x"]
    assert items.shape[1:] == (2, 3)
    assert items.dtype == datatype.numpy
    if items.dtype.kind in "iu" and datatype is not DataType.BF16:
        assert items.min() >= 0
        assert items.max() <= 99


def test_axes_of_any_size_take_the_size_given_or_the_default_said_aloud() -> None:
    spec = TensorSpec("x", DataType.FP32, (DYNAMIC, 8, DYNAMIC), ("length", "", ""))
    given = calibration(signature(spec), dimensions={"length": 5})
    assert given.items["x"].shape[1:] == (5, 8, 64)
    assert given.dimensions == {"length": 5, "x.2": 64}
    assert len(given.notes) == 1
    assert "x.2" in given.notes[0]


def test_one_axis_of_two_inputs_has_one_size_and_one_note() -> None:
    a = TensorSpec("a", DataType.INT64, (DYNAMIC,), ("length",))
    b = TensorSpec("b", DataType.INT64, (DYNAMIC,), ("length",))
    given = calibration(signature(a, b))
    assert given.dimensions == {"length": 64}
    assert len(given.notes) == 1


def test_size_of_an_unknown_axis_is_refused() -> None:
    spec = TensorSpec("x", DataType.FP32, (DYNAMIC,), ("length",))
    with pytest.raises(InvalidInput, match=r"no axis is named width.*length"):
        calibration(signature(spec), dimensions={"width": 3})


def test_rows_repeat_what_is_there() -> None:
    items = {"x": np.arange(3)[:, None]}
    assert rows(items, 7)["x"].ravel().tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_packed_texts_are_what_a_worker_reads() -> None:
    texts = np.array([b"", b"abc"], dtype=object)
    assert unpack_elements(memoryview(packed(texts)), 2).tolist() == [b"", b"abc"]


def test_samples_are_read_and_converted(tmp_path: Path) -> None:
    wanted = signature(TensorSpec("x", DataType.FP32, (4,)))
    np.save(tmp_path / "one.npy", np.ones((3, 4)))
    np.savez(tmp_path / "named.npz", x=np.ones((3, 4), np.float32))
    for name in ("one.npy", "named.npz"):
        assert load_samples(tmp_path / name, wanted)["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones((3, 5)), "expected \\[items, 4\\]"),
        (np.ones((0, 4)), "1 or more"),
        (np.ones((3, 4), complex), "complex128; expected FP32"),
        (np.array([None]), "cannot be read"),
    ],
)
def test_wrong_samples_are_refused(tmp_path: Path, array: np.ndarray, said: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(InvalidInput, match=said):
        load_samples(tmp_path / "x.npy", signature(TensorSpec("x", DataType.FP32, (4,))))


def test_one_array_is_not_enough_for_two_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 4)))
    two = signature(TensorSpec("x", DataType.FP32, (4,)), TensorSpec("y", DataType.FP32, (4,)))
    with pytest.raises(InvalidInput, match="x, y"):
        load_samples(tmp_path / "x.npy", two)


# --- hashes ---------------------------------------------------------------------------------------


def test_hash_is_of_the_content_alone(tmp_path: Path) -> None:
    one, other = models.linear(tmp_path / "a.onnx"), models.linear(tmp_path / "b.onnx")
    assert model_hash(one) == model_hash(other)
    assert model_hash(models.linear(tmp_path / "c.onnx", inputs=5)) != model_hash(one)


def test_hash_counts_external_data(tmp_path: Path) -> None:
    plain = onnx.load(str(models.linear(tmp_path / "plain.onnx")))
    path = tmp_path / "model.onnx"
    onnx.save_model(plain, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert files_beside(path) == [tmp_path / "weights.bin"]
    before = model_hash(path)
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert model_hash(path) != before


def test_hash_of_a_folder_counts_names_and_contents(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "1").mkdir(parents=True)
        (tmp_path / folder / "1" / "model.py").write_text("x = 1\n")
    assert model_hash(tmp_path / "one") == model_hash(tmp_path / "two")
    (tmp_path / "two" / "1" / "model.py").rename(tmp_path / "two" / "1" / "other.py")
    assert model_hash(tmp_path / "one") != model_hash(tmp_path / "two")


def test_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.onnx"):
        model_hash(tmp_path / "none.onnx")
