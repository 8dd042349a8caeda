"""The benchmarks' models load, take any batch and answer finite numbers that depend on the item alone."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from benchmarks import models

RESNET50_WEIGHTS = 25_530_472  # torchvision's 25,557,032 without the scale of 26,560 batch normalisations


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", list(models.MODELS))
def test_any_batch_gives_finite_answers_row_by_row(name: str, folder: Path) -> None:
    path = models.model_path(name, folder=folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, given.name) == ("x", "y")
    assert taken.shape[0] == given.shape[0] == "batch"
    x = np.random.default_rng(7).standard_normal((3, *taken.shape[1:]), np.float32)
    (together,) = session.run(None, {"x": x})
    alone = np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])
    assert np.isfinite(together).all()
    assert together.std() > 1e-3, "a constant answer would hide a mix-up of items"
    np.testing.assert_allclose(alone, together, rtol=1e-3, atol=1e-3)
    assert not np.allclose(together[0], together[1], rtol=1e-2)


def test_resnet50_has_the_size_of_the_real_one(folder: Path) -> None:
    model = onnx.load(models.model_path("resnet50", folder=folder))
    assert models.weight_count(model) == RESNET50_WEIGHTS
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 53


def test_the_same_weights_every_time() -> None:
    assert models.tiny_cnn().SerializeToString() == models.tiny_cnn().SerializeToString()


def test_a_model_is_made_once(tmp_path: Path) -> None:
    first = models.model_path("mlp64", folder=tmp_path)
    made = first.stat().st_mtime_ns
    assert models.model_path("mlp64", folder=tmp_path).stat().st_mtime_ns == made
    assert list(tmp_path.iterdir()) == [first], "nothing unfinished is left behind"
