"""Trains the demo's digit classifiers and writes them, with the test images, to the demo's folder.

Run with ``python -m examples.digits.train [FOLDER]``; needs scikit-learn and onnx, no other framework.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from examples.digits import convnet, export, images
from examples.digits.images import Array, Labels

SEED = 20
TEST_SHARE = 0.25
FOLDER = Path(__file__).resolve().parents[2] / "src" / "partita" / "demo" / "models"


def main(folder: Path = FOLDER) -> None:
    x_train, x_test, y_train, y_test = images.split(TEST_SHARE, SEED)
    folder.mkdir(parents=True, exist_ok=True)
    images.save(folder, x_test, y_test)
    # One BLAS thread: the order of additions, and with it every weight, stays the same.
    with threadpool_limits(1):
        models = {
            "digits_mlp": train_dense(x_train, y_train, name="digits_mlp", hidden=(64, 32)),
            "digits_wide": train_dense(x_train, y_train, name="digits_wide", hidden=(512, 256)),
            "digits_cnn": train_convolutional(x_train, y_train, name="digits_cnn"),
        }
    for name, model in models.items():
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        (answer,) = ReferenceEvaluator(model).run(None, {"x": x_test})
        accuracy = float((np.argmax(answer, axis=1) == y_test).mean())
        print(
            f"{name:12} accuracy {accuracy:.4f} on {len(y_test)} test images, {path.stat().st_size:,} bytes"
        )


def train_dense(pixels: Array, labels: Labels, *, name: str, hidden: tuple[int, ...]) -> onnx.ModelProto:
    """A multilayer perceptron by scikit-learn."""
    network = MLPClassifier(hidden, alpha=1e-3, learning_rate_init=2e-3, max_iter=400, random_state=SEED)
    network.fit(pixels / export.PIXEL_MAX, labels)
    return export.dense_network(network.coefs_, network.intercepts_, name=name)


def train_convolutional(pixels: Array, labels: Labels, *, name: str) -> onnx.ModelProto:
    """A small convolutional network in numpy."""
    images = (pixels / export.PIXEL_MAX).reshape(-1, convnet.SIDE, convnet.SIDE)
    rng = np.random.default_rng(SEED)
    parameters = convnet.train(images, labels, rng=rng, epochs=30, first=32, second=64)
    return export.convolutional_network(parameters, name=name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
