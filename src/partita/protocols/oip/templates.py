"""What an inference request's JSON part means for one model: checked once, then used for every request
that begins with the same bytes."""

from dataclasses import dataclass, field

from partita.core.errors import InvalidRequest
from partita.core.tensors import DYNAMIC, DataType, Signature, TensorSpec
from partita.engine.request import Layout
from partita.protocols.oip.documents import InferRequest, InputTensor


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """One output of the response: its place in the signature and its form."""

    index: int
    is_binary: bool
    classes: int = 0
    """Send the k largest as ``value:index`` instead of the tensor; 0 = send the tensor."""


@dataclass(slots=True)
class Template:
    """A checked request, its data left out."""

    n_items: int
    layout: Layout
    spans: tuple[tuple[int, int] | None, ...]
    """Of each signature input, where it lies in the binary part: (start, end) bytes; None = in the JSON."""
    binary_bytes: int
    shapes: tuple[tuple[int, ...], ...]
    """Full shapes of the inputs, signature order."""
    outputs: tuple[WantedOutput, ...]
    request_id: str
    deadline_s: float | None
    heads: dict[tuple[tuple[int, ...], ...], bytes] = field(default_factory=dict)
    """Response heads that were made for output shapes, for responses whose outputs are all binary."""
    newest: tuple[tuple[tuple[int, ...], ...], bytes] | None = None
    """The latest of them where there is one output, found again by identity."""

    @property
    def is_all_binary(self) -> bool:
        """Whether the JSON part holds no tensor data, so that it means the same in every request."""
        return None not in self.spans


def make_template(request: InferRequest, signature: Signature, default_binary: bool = False) -> Template:
    """Check a request against a signature; raises `InvalidRequest` naming what is wrong and what is right."""
    if request.parameters.sequence_start or request.parameters.sequence_end or request.parameters.sequence_id:
        raise InvalidRequest("sequences are not supported")
    given = _by_name(request.inputs, signature)
    shapes, spans, binary_bytes = _inputs(request.inputs, given, signature)
    n_items = _items(signature, shapes)
    timeout_us = request.parameters.timeout
    return Template(
        n_items=n_items,
        layout=_layout(signature, shapes),
        spans=spans,
        binary_bytes=binary_bytes,
        shapes=shapes,
        outputs=_outputs(request, signature, default_binary),
        request_id=request.id,
        deadline_s=timeout_us / 1e6 if timeout_us else None,
    )


def _by_name(inputs: tuple[InputTensor, ...], signature: Signature) -> dict[str, InputTensor]:
    given = {tensor.name: tensor for tensor in inputs}
    expected = [spec.name for spec in signature.inputs]
    if len(given) != len(inputs):
        raise InvalidRequest("an input is given twice")
    for name in given:
        if name not in expected:
            raise InvalidRequest(f"unexpected input {name!r}; the model's inputs are {', '.join(expected)}")
    for name in expected:
        if name not in given:
            raise InvalidRequest(f"input {name!r} is missing; the model's inputs are {', '.join(expected)}")
    return given


def _inputs(
    inputs: tuple[InputTensor, ...], given: dict[str, InputTensor], signature: Signature
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int] | None, ...], int]:
    spans: dict[str, tuple[int, int] | None] = {}
    at = 0
    for tensor in inputs:  # binary data come in the order of the request, not of the signature
        size = tensor.parameters.binary_data_size
        if size is not None and size < 0:
            raise InvalidRequest(f"input {tensor.name!r}: binary_data_size is negative")
        if (size is None) == (tensor.data is None):
            raise InvalidRequest(f"input {tensor.name!r} needs either data or parameters.binary_data_size")
        spans[tensor.name] = None if size is None else (at, at + size)
        at += size or 0
    shapes = []
    for spec in signature.inputs:
        tensor = given[spec.name]
        _check_input(tensor, spec, signature.batched)
        shapes.append(tensor.shape)
    return tuple(shapes), tuple(spans[spec.name] for spec in signature.inputs), at


def _check_input(tensor: InputTensor, spec: TensorSpec, batched: bool) -> None:
    name, shape = tensor.name, tensor.shape
    if tensor.datatype != spec.datatype:
        raise InvalidRequest(
            f"input {name!r} has datatype {tensor.datatype}; the model wants {spec.datatype}"
        )
    wanted = (DYNAMIC, *spec.shape) if batched else spec.shape
    fits = len(shape) == len(wanted) and all(
        size >= 0 and want in (size, DYNAMIC) for size, want in zip(shape, wanted, strict=True)
    )
    if not fits:
        raise InvalidRequest(f"input {name!r} has shape {list(shape)}; the model wants {list(wanted)}")
    if batched and shape[0] == 0:
        raise InvalidRequest(f"input {name!r} has no items: its first axis is 0")
    size_bytes = tensor.parameters.binary_data_size
    if size_bytes is not None and spec.datatype is not DataType.BYTES:
        expected = _count(shape) * spec.datatype.item_bytes
        if size_bytes != expected:
            raise InvalidRequest(
                f"input {name!r}: binary_data_size is {size_bytes}, but shape {list(shape)} of "
                f"{spec.datatype} has {expected} bytes"
            )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _items(signature: Signature, shapes: tuple[tuple[int, ...], ...]) -> int:
    if not signature.batched:
        return 1
    counts = {shape[0] for shape in shapes}
    if len(counts) != 1:
        raise InvalidRequest(f"the inputs have different numbers of items: {sorted(counts)}")
    return counts.pop()


def _layout(signature: Signature, shapes: tuple[tuple[int, ...], ...]) -> Layout:
    items = tuple(shape[1:] for shape in shapes) if signature.batched else shapes
    is_ragged = any(spec.datatype is DataType.BYTES for spec in signature.inputs)
    row_bytes = tuple(
        _count(shape) * spec.datatype.item_bytes for spec, shape in zip(signature.inputs, items, strict=True)
    )
    if signature.is_static:
        return Layout(None, row_bytes)
    return Layout(items, row_bytes, items, is_ragged)


def _outputs(request: InferRequest, signature: Signature, default_binary: bool) -> tuple[WantedOutput, ...]:
    default = request.parameters.binary_data_output or default_binary
    names = [spec.name for spec in signature.outputs]
    if not request.outputs:
        return tuple(WantedOutput(index, default) for index in range(len(names)))
    wanted = []
    for output in request.outputs:
        if output.name not in names:
            raise InvalidRequest(
                f"unexpected output {output.name!r}; the model's outputs are {', '.join(names)}"
            )
        binary = output.parameters.binary_data
        classes = output.parameters.classification or 0
        wanted.append(WantedOutput(names.index(output.name), default if binary is None else binary, classes))
    return tuple(wanted)
