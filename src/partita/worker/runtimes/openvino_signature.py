"""What a compiled model of OpenVINO takes and gives, as a signature."""

from typing import Any

from partita.core.errors import LoadFailed
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.worker.runtimes.axes import batch_axis
from partita.worker.runtimes.interface import LoadRequest

_DATATYPES = {
    "boolean": DataType.BOOL,
    "u8": DataType.UINT8,
    "u16": DataType.UINT16,
    "u32": DataType.UINT32,
    "u64": DataType.UINT64,
    "i8": DataType.INT8,
    "i16": DataType.INT16,
    "i32": DataType.INT32,
    "i64": DataType.INT64,
    "f16": DataType.FP16,
    "bf16": DataType.BF16,
    "f32": DataType.FP32,
    "f64": DataType.FP64,
}


def signature_of(compiled: Any, request: LoadRequest) -> Signature:
    """Return inputs and outputs. Raises `LoadFailed` for a tensor that requests cannot carry."""
    inputs, outputs = compiled.inputs, compiled.outputs
    batched, fixed = batch_axis([_axes(port) for port in inputs], [_axes(port) for port in outputs])
    if "batched" in request.options:
        batched = request.option("batched", True)
        fixed = fixed if batched else None
    skip = 1 if batched else 0
    return Signature(
        inputs=tuple(_spec(port, f"input_{i}", skip) for i, port in enumerate(inputs)),
        outputs=tuple(_spec(port, f"output_{i}", skip, _sink(port)) for i, port in enumerate(outputs)),
        batched=batched,
        fixed_batch=fixed,
    )


def _axes(port: Any) -> list[int | str | None]:
    return [int(axis.get_length()) if axis.is_static else None for axis in port.get_partial_shape()]


def _sink(port: Any) -> str:
    """Return what a model's file calls an output; the tensor has other names, too, where it is a copy."""
    name: str = port.get_node().get_friendly_name()
    return name.partition("/sink_port_")[0]


def _spec(port: Any, unnamed: str, skip: int, sink: str = "") -> TensorSpec:
    kind = port.get_element_type().get_type_name()
    names = port.get_names()
    name = sink if sink in names else port.get_any_name() if names else unnamed
    if kind not in _DATATYPES:
        raise LoadFailed(f"tensor {name!r} has type {kind}, which requests cannot carry")
    axes = _axes(port)[skip:]
    return TensorSpec(name, _DATATYPES[kind], tuple(DYNAMIC if not isinstance(a, int) else a for a in axes))
