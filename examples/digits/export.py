"""Turns trained weights into ONNX: ``x`` FP32 [batch, 64], pixels 0..16 → ``probabilities`` FP32 [batch, 10].

The scaling of pixels to 0..1 is folded into the first layer's weights, so that a client sends what the
data set holds.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from examples.digits import convnet, views

Array = NDArray[np.float32]

PIXELS = 64
PIXEL_MAX = np.float32(16)
OPSET = 17
IR_VERSION = 8  # read by every ONNX Runtime since 1.12


def dense_network(weights: Sequence[Array], biases: Sequence[Array], *, name: str) -> onnx.ModelProto:
    """A multilayer perceptron; `weights` are (inputs, outputs)."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    scaled = [weight / PIXEL_MAX if layer == 0 else weight for layer, weight in enumerate(weights)]
    value = _dense_layers("x", scaled, biases, nodes, constants)
    return _classifier(nodes, constants, logits=value, name=name)


def convolutional_network(parameters: convnet.Parameters, *, name: str) -> onnx.ModelProto:
    """The network of `convnet`; its NHWC weights are turned to ONNX's NCHW."""
    first, second = len(parameters["bias1"]), len(parameters["bias2"])
    side = convnet.SIDE // 2
    kernel1 = parameters["conv1"].reshape(3, 3, 1, first).transpose(3, 2, 0, 1) / PIXEL_MAX
    kernel2 = parameters["conv2"].reshape(3, 3, first, second).transpose(3, 2, 0, 1)
    dense = (
        parameters["dense"]
        .reshape(side, side, second, -1)
        .transpose(2, 0, 1, 3)
        .reshape(second * side**2, -1)
    )
    constants = [
        numpy_helper.from_array(np.array([-1, 1, convnet.SIDE, convnet.SIDE]), "image"),
        _constant("kernel1", kernel1),
        _constant("bias1", parameters["bias1"]),
        _constant("kernel2", kernel2),
        _constant("bias2", parameters["bias2"]),
        _constant("dense", dense),
        _constant("bias", parameters["bias"]),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "image"], ["pixels"]),
        helper.make_node("Conv", ["pixels", "kernel1", "bias1"], ["conv1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1"], ["hidden1"]),
        helper.make_node("Conv", ["hidden1", "kernel2", "bias2"], ["conv2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv2"], ["hidden2"]),
        helper.make_node("MaxPool", ["hidden2"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "dense", "bias"], ["logits"]),
    ]
    return _classifier(nodes, constants, logits="logits", name=name)


def _classifier(
    nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], *, logits: str, name: str
) -> onnx.ModelProto:
    nodes.append(helper.make_node("Softmax", [logits], ["probabilities"], axis=1))
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", PIXELS])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", convnet.CLASSES])],
        constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="partita"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _constant(name: str, values: NDArray[np.floating]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)


def slopes_network(weights: Sequence[Array], biases: Sequence[Array], *, name: str) -> onnx.ModelProto:
    """A multilayer perceptron over `views.slopes`."""
    kernels = np.concatenate([views.SLOPES, -views.SLOPES])[:, None] / PIXEL_MAX
    constants = [
        numpy_helper.from_array(np.array([-1, 1, views.SIDE, views.SIDE]), "image"),
        _constant("kernels", kernels),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "image"], ["pixels"]),
        helper.make_node("Conv", ["pixels", "kernels"], ["rises"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["rises"], ["risen"]),
        helper.make_node("AveragePool", ["risen"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["slopes"]),
    ]
    value = _dense_layers("slopes", weights, biases, nodes, constants)
    return _classifier(nodes, constants, logits=value, name=name)


def nearness_network(examples: Array, weight: Array, width: float, *, name: str) -> onnx.ModelProto:
    """A linear layer, `weight` (examples, 10), over `views.nearness`."""
    squares = (examples**2).sum(axis=1)
    constants = [
        _constant("scale", np.array(1 / PIXEL_MAX)),
        _constant("crossed", 2 * width * examples.T),
        _constant("squares", -width * squares),
        _constant("width", np.array(width)),
        numpy_helper.from_array(np.array([1]), "features"),
        _constant("weight", weight),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "scaled"], ["powers"]),
        helper.make_node("ReduceSum", ["powers", "features"], ["square"], keepdims=1),
        helper.make_node("Mul", ["square", "width"], ["own"]),
        helper.make_node("Gemm", ["scaled", "crossed", "squares"], ["others"]),
        helper.make_node("Sub", ["others", "own"], ["exponent"]),
        helper.make_node("Exp", ["exponent"], ["nearness"]),
        helper.make_node("MatMul", ["nearness", "weight"], ["logits"]),
    ]
    return _classifier(nodes, constants, logits="logits", name=name)


def _dense_layers(
    value: str,
    weights: Sequence[Array],
    biases: Sequence[Array],
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
) -> str:
    """Append dense layers with rectifiers between them; returns the name of the last sum."""
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True), start=1):
        constants += [_constant(f"weight{layer}", weight), _constant(f"bias{layer}", bias)]
        inputs = [value, f"weight{layer}", f"bias{layer}"]
        nodes.append(helper.make_node("Gemm", inputs, [f"sum{layer}"]))
        value = f"sum{layer}"
        if layer < len(weights):
            nodes.append(helper.make_node("Relu", [value], [f"hidden{layer}"]))
            value = f"hidden{layer}"
    return value
