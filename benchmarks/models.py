"""Models for the benchmarks, with seeded random weights, made by script and kept in ``benchmarks/models/``.

Each has one input ``x`` FP32 [batch, …] and one output ``y`` FP32 [batch, …]. Benchmarks call
`model_path`, which makes what is missing; ``python -m benchmarks.models [NAME…]`` makes them beforehand.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).resolve().parent / "models"
OPSET = 17
IR_VERSION = 8


class Network:
    """A graph under construction, one layer after another; every method returns the name of its output.

    Weights are drawn with He's scale, so that activations neither vanish nor overflow.
    """

    def __init__(self, *, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def node(self, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        """Append one node with one output."""
        output = f"{operator.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))  # type: ignore[arg-type]
        return output

    def weight(self, *shape: int, fan_in: int, gain: float = 2.0) -> str:
        """Append a normal constant of variance gain ÷ fan_in."""
        values = self._rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(gain / fan_in))
        return self.constant(values)

    def constant(self, values: NDArray[np.generic]) -> str:
        """Append a constant."""
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def conv(
        self,
        value: str,
        channels: tuple[int, int],
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        gain: float = 2.0,
    ) -> str:
        """Append a same-padded convolution with bias, as batch normalisation folded into it leaves it."""
        taken, given = channels
        fan_in = taken // groups * kernel**2
        weight = self.weight(given, taken // groups, kernel, kernel, fan_in=fan_in, gain=gain)
        bias = self.constant(np.zeros(given, np.float32))
        pads, strides = [kernel // 2] * 4, [stride, stride]
        return self.node("Conv", [value, weight, bias], pads=pads, strides=strides, group=groups)

    def dense(self, value: str, taken: int, given: int) -> str:
        """Append a dense layer."""
        weight = self.weight(taken, given, fan_in=taken)
        return self.node("Gemm", [value, weight, self.constant(np.zeros(given, np.float32))])

    def relu(self, value: str) -> str:
        """Append a rectifier."""
        return self.node("Relu", [value])

    def classify(self, value: str, taken: int, given: int) -> str:
        """Append global average pooling and a dense layer."""
        pooled = self.node("Flatten", [self.node("GlobalAveragePool", [value])])
        return self.dense(pooled, taken, given)

    def model(self, name: str, *, item: Sequence[int], output: str, classes: int) -> onnx.ModelProto:
        """Return the finished model; `item` is the shape of one input item."""
        self._nodes.append(helper.make_node("Identity", [output], ["y"]))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *item])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", classes])
        graph = helper.make_graph(self._nodes, name, [x], [y], self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="partita")


def resnet50() -> onnx.ModelProto:
    """ResNet-50 v1.5 (the stride in the 3×3 convolution), 224×224, normalisation folded: 25.5 M weights."""
    net = Network(seed=50)
    value = net.relu(net.conv("x", (3, 64), kernel=7, stride=2))
    value = net.node("MaxPool", [value], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    taken = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            value = _bottleneck(net, value, taken, inner, stride=stride)
            taken = 4 * inner
    return net.model("resnet50", item=(3, 224, 224), output=net.classify(value, taken, 1000), classes=1000)


def _bottleneck(net: Network, value: str, taken: int, inner: int, *, stride: int) -> str:
    branch = net.relu(net.conv(value, (taken, inner)))
    branch = net.relu(net.conv(branch, (inner, inner), kernel=3, stride=stride))
    # A small gain keeps the sum over sixteen blocks from growing, as a trained network's normalisation does.
    branch = net.conv(branch, (inner, 4 * inner), gain=0.2)
    if taken != 4 * inner:
        value = net.conv(value, (taken, 4 * inner), stride=stride, gain=1.0)
    return net.relu(net.node("Add", [branch, value]))


def mlp64() -> onnx.ModelProto:
    """A 64 → 128 → 10 perceptron: the server's own cost is nearly all of a request's."""
    net = Network(seed=64)
    hidden = net.relu(net.dense("x", 64, 128))
    return net.model("mlp64", item=(64,), output=net.dense(hidden, 128, 10), classes=10)


def tiny_cnn() -> onnx.ModelProto:
    """Five small convolutions on 32×32 images."""
    net = Network(seed=1)
    value, taken = "x", 3
    for given, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        value = net.relu(net.conv(value, (taken, given), kernel=3, stride=stride))
        taken = given
    return net.model("tiny_cnn", item=(3, 32, 32), output=net.classify(value, taken, 10), classes=10)


def big_dense() -> onnx.ModelProto:
    """Two dense layers of 32 MiB each: a small batch is spent on reading weights."""
    net = Network(seed=2)
    hidden = net.relu(net.dense("x", 1024, 8192))
    return net.model("big_dense", item=(1024,), output=net.dense(hidden, 8192, 1024), classes=1024)


def branchy() -> onnx.ModelProto:
    """Twelve inception-like blocks of four thin branches on 8×8 maps: about 150 tiny operators."""
    net = Network(seed=3)
    width = 32
    value = net.relu(net.conv("x", (3, width), kernel=3))
    for _ in range(12):
        near = net.relu(net.conv(value, (width, 8)))
        middle = net.relu(net.conv(net.relu(net.conv(value, (width, 4))), (4, 8), kernel=3))
        far = net.relu(net.conv(net.relu(net.conv(value, (width, 4))), (4, 8), kernel=5))
        pooled = net.node("MaxPool", [value], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
        pooled = net.relu(net.conv(pooled, (width, 8)))
        value = net.node("Concat", [near, middle, far, pooled], axis=1)
    return net.model("branchy", item=(3, 8, 8), output=net.classify(value, width, 10), classes=10)


def lstm() -> onnx.ModelProto:
    """One LSTM layer of 128 units over 32 steps of 32 features: the steps cannot run side by side."""
    net = Network(seed=4)
    steps, features, units = 32, 32, 128
    sequence = net.node("Transpose", ["x"], perm=[1, 0, 2])  # (steps, batch, features)
    weight = net.weight(1, 4 * units, features, fan_in=features, gain=1.0)
    recurrent = net.weight(1, 4 * units, units, fan_in=units, gain=1.0)
    hidden = net.node("LSTM", [sequence, weight, recurrent], hidden_size=units)  # (steps, 1, batch, units)
    last = net.node("Gather", [hidden, net.constant(np.array(steps - 1))], axis=0)
    rows = net.node("Squeeze", [last, net.constant(np.array([0]))])
    return net.model("lstm", item=(steps, features), output=net.dense(rows, units, 10), classes=10)


def depthwise() -> onnx.ModelProto:
    """Six depthwise-separable blocks on 32×32 images."""
    net = Network(seed=5)
    value = net.relu(net.conv("x", (3, 32), kernel=3, stride=2))
    taken = 32
    for given, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        value = net.relu(net.conv(value, (taken, taken), kernel=3, stride=stride, groups=taken))
        value = net.relu(net.conv(value, (taken, given)))
        taken = given
    return net.model("depthwise", item=(3, 32, 32), output=net.classify(value, taken, 10), classes=10)


SMALL: dict[str, Callable[[], onnx.ModelProto]] = {
    "tiny_cnn": tiny_cnn,
    "big_dense": big_dense,
    "branchy": branchy,
    "lstm": lstm,
    "depthwise": depthwise,
}
"""Models whose plans differ much on few cores: what the regret benchmark measures."""

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {"resnet50": resnet50, "mlp64": mlp64, **SMALL}


def model_path(name: str, *, folder: Path = FOLDER) -> Path:
    """Return the file of a model, made first if it is not there; `KeyError` for an unknown name."""
    build, path = MODELS[name], folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that two benchmarks started at once never see half a file.
        unfinished = path.with_suffix(f".{os.getpid()}")
        onnx.save(build(), unfinished)
        unfinished.rename(path)
    return path


def weight_count(model: onnx.ModelProto) -> int:
    """Number of elements in all constants."""
    return sum(int(np.prod(constant.dims)) for constant in model.graph.initializer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Make the benchmarks' models.", prog="python -m benchmarks.models"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in MODELS]
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    for name in arguments.names or MODELS:
        path = model_path(name, folder=arguments.output)
        print(f"{name:10} {weight_count(onnx.load(path)):>12,} weights  {path}")


if __name__ == "__main__":
    main()
