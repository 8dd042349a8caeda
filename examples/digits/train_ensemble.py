"""Trains the four different networks of the demo's ensemble, and says how often each and all together err.

A quarter of the images (449) is for training, so that there are enough mistakes to count in the rest (1348).

Run with ``python -m examples.digits.train_ensemble [FOLDER]``; needs scikit-learn and onnx.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from sklearn.cluster import KMeans
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from examples.digits import convnet, export, images, views
from examples.digits.images import Array, Labels

SEED = 23
TEST_SHARE = 0.75
FOLDS = 4
FOLDER = Path(__file__).resolve().parents[2] / "src" / "partita" / "demo" / "ensemble_models"

TYPICAL = 120
"""Images that the last member compares with: means of clusters of the training images."""
WIDTH = 0.2
"""Of `views.nearness`: an example counts exp(−width · distance²)."""
RIDGE = 0.01
SHARPNESS = 8.0
"""Makes the least squares' answers, about 0 and 1, as sure as the other members are."""


def main(folder: Path = FOLDER) -> None:
    x_train, x_test, y_train, y_test = images.split(TEST_SHARE, SEED)
    folder.mkdir(parents=True, exist_ok=True)
    # One BLAS thread: the order of additions, and with it every weight, stays the same.
    with threadpool_limits(1):
        made = dict(members(x_train, y_train))
    for name, model in made.items():
        onnx.save(model, folder / f"{name}.onnx")
    images.save(folder, x_test, y_test)
    for name, wrong in errors(made, x_test, y_test).items():
        print(f"{name:16} {wrong:3} of {len(y_test)} test images wrong, {1 - wrong / len(y_test):.2%} right")


def validate() -> None:
    """Print what cross-validation within the training images says of the members, and of all together."""
    x, _, y, _ = images.split(TEST_SHARE, SEED)
    total: dict[str, int] = {}
    with threadpool_limits(1):
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=1).split(x, y):
            for name, wrong in errors(dict(members(x[train], y[train])), x[test], y[test]).items():
                total[name] = total.get(name, 0) + wrong
    print(f"of {len(y)}: {total}")


def errors(models: dict[str, onnx.ModelProto], pixels: Array, labels: Labels) -> dict[str, int]:
    """Return how many images each model names wrongly, and their mean, ``together``."""
    answers = {name: _answers(model, pixels) for name, model in models.items()}
    answers["together"] = np.mean(list(answers.values()), axis=0)
    return {name: int((answer.argmax(axis=1) != labels).sum()) for name, answer in answers.items()}


def _answers(model: onnx.ModelProto, pixels: Array) -> Array:
    (answer,) = ReferenceEvaluator(model).run(None, {"x": pixels})
    return np.asarray(answer)


def members(pixels: Array, labels: Labels) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the four networks, trained on these images; most see each image moved by a pixel as well."""
    images = pixels / export.PIXEL_MAX
    moved, named = views.shifted(images, labels)
    yield "digits_conv", convolutional(images, labels)
    dense = perceptron((128, 64)).fit(moved, named)
    yield "digits_pixels", export.dense_network(dense.coefs_, dense.intercepts_, name="digits_pixels")
    slopes = perceptron((64,)).fit(views.slopes(moved), named)
    yield "digits_slopes", export.slopes_network(slopes.coefs_, slopes.intercepts_, name="digits_slopes")
    typical = KMeans(TYPICAL, n_init=2, random_state=SEED).fit(moved).cluster_centers_.astype(np.float32)
    weight = least_squares(views.nearness(moved, typical, WIDTH), named)
    yield "digits_nearness", export.nearness_network(typical, weight, WIDTH, name="digits_nearness")


def convolutional(images: Array, labels: Labels) -> onnx.ModelProto:
    """A small convolutional network in numpy."""
    square = images.reshape(-1, convnet.SIDE, convnet.SIDE)
    rng = np.random.default_rng(SEED)
    parameters = convnet.train(square, labels, rng=rng, epochs=80, first=16, second=24)
    return export.convolutional_network(parameters, name="digits_conv")


def perceptron(hidden: tuple[int, ...]) -> MLPClassifier:
    """Return scikit-learn's, untrained."""
    return MLPClassifier(hidden, alpha=1e-2, learning_rate_init=2e-3, max_iter=60, random_state=SEED)


def least_squares(features: Array, labels: Labels) -> Array:
    """Return the weights (features, 10) of a ridge regression on the classes."""
    given = features.astype(np.float64)
    wanted = given.T @ np.eye(convnet.CLASSES)[labels]
    return np.asarray(
        SHARPNESS * np.linalg.solve(given.T @ given + RIDGE * np.eye(given.shape[1]), wanted), np.float32
    )


if __name__ == "__main__":
    if "--validate" in sys.argv:
        validate()
    else:
        main(*map(Path, sys.argv[1:2]))
