"""Leaves out of an ONNX graph the rows that nobody reads.

A classifier of texts computes its last layer for every token and reads the first. Here that choice moves up
through the operators that keep rows apart, as far as there are products on the way: what is read is computed
as it was, and the rest no longer.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita.worker.runtimes.onnx_picks import (
    END,
    Pick,
    Shape,
    Wants,
    attribute,
    picked_index,
    picked_range,
    wants,
)

_SMALL = 64
"""Constants of up to so many elements are looked at."""
_PREFIX = "partita_narrow"
_STANDARD = ("", "ai.onnx")
_OPSET = 13
"""Before this version a softmax took more axes than its own together."""


def narrow(model: Any) -> int:
    """Change a model so that it computes fewer rows; returns how many products became smaller.

    Nothing is changed where that is none. Raises what shape inference raises.
    """
    graph = model.graph
    if any(one.domain in _STANDARD and one.version < _OPSET for one in model.opset_import):
        return 0
    if any(one.HasField("g") or one.graphs for node in graph.node for one in node.attribute):
        return 0  # inner graphs read what they like
    plan = _Plan(model)
    products = [k for k in plan.narrowed if graph.node[k].op_type == "MatMul"]
    if products:
        nodes = list(_Rewriting(plan).nodes())
        del graph.node[:], graph.value_info[:]
        graph.node.extend(nodes)
        _drop_unused(graph)
    return len(products)


class _Plan:
    """What of every tensor is needed."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.constants = _constants(model.graph)
        self.shapes = _shapes(model)
        self.seeds: set[int] = {k for k, node in enumerate(self.graph.node) if self._seed(node)}
        """Nodes, by their place, that read some rows only."""
        self.wanted: dict[int, Wants] = {}
        """What each node needs of its inputs."""
        self.narrowed: set[int] = set()
        """Nodes that make but those rows of their output that are read."""
        self._needs: dict[str, Pick | None] = {}
        self._look()
        useful = self._useful()
        self.seeds = {k for k in self.seeds if self.graph.node[k].input[0] in useful}
        self._look()

    def is_narrow(self, tensor: str) -> bool:
        """Whether the tensor is made with those rows only that are read."""
        return tensor in self._made

    def _look(self) -> None:
        """Go from the outputs to the inputs."""
        self.wanted, self.narrowed = {}, set()
        self._needs = {output.name: None for output in self.graph.output}
        for k in reversed(range(len(self.graph.node))):
            node = self.graph.node[k]
            self.wanted[k] = self._wants(k, node)
            for name, pick in zip(node.input, self.wanted[k], strict=True):
                self._needs[name] = pick if self._needs.get(name, pick) == pick else None
        self._made = {self.graph.node[k].output[0] for k in self.narrowed}

    def _wants(self, k: int, node: Any) -> Wants:
        everything: Wants = [None] * len(node.input)
        pick = self._needs.get(node.output[0]) if len(node.output) == 1 else None
        if pick is None:
            return [self._seed(node), *everything[1:]] if k in self.seeds else everything
        found = self._passed(node, pick)
        if found is None:
            return everything
        self.narrowed.add(k)
        return found

    def _passed(self, node: Any, pick: Pick) -> Wants | None:
        if node.domain not in _STANDARD:
            return None
        if node.op_type == "Slice" and self._cuts(node) == []:
            return [pick, *[None] * (len(node.input) - 1)]
        if node.op_type == "Reshape" and self.reshaped(node, pick) is None:
            return None
        return wants(node, pick, self.shapes)

    def _useful(self) -> set[str]:
        """Return the tensors with fewer rows that a product is behind."""
        useful: set[str] = set()
        for k, node in enumerate(self.graph.node):
            if k in self.narrowed and (
                node.op_type == "MatMul"
                or any(p and n in useful for n, p in zip(node.input, self.wanted[k], strict=True))
            ):
                useful.add(node.output[0])
        return useful

    # --- where rows are taken -----------------------------------------------------------------------

    def _seed(self, node: Any) -> Pick | None:
        """Return the rows that a node takes of its first input; None where it takes all, or nobody knows."""
        if node.domain not in _STANDARD or node.input[:1] == [] or node.input[0] in self.constants:
            return None
        shape = self.shapes.get(node.input[0])
        if shape is None:
            return None
        if node.op_type == "Gather":
            index = self.constants.get(node.input[1])
            axis = attribute(node, "axis", 0) % len(shape)
            return (
                picked_index(axis, int(index.ravel()[0])) if index is not None and index.size == 1 else None
            )
        cuts = self._cuts(node) if node.op_type == "Slice" else None
        return cuts[0] if cuts and len(cuts) == 1 else None

    def _cuts(self, node: Any) -> list[Pick | None] | None:
        """Return what a slice takes of the axes that it does not take whole; None where nobody knows."""
        shape = self.shapes.get(node.input[0])
        parts = [self.constants.get(name) for name in node.input[1:]]
        if shape is None or len(parts) < 3 or any(part is None for part in parts):
            return None
        starts, stops, axes = (part.ravel().tolist() for part in parts[:3] if part is not None)
        if len(parts) > 3 and parts[3] is not None and set(parts[3].ravel().tolist()) != {1}:
            return None
        found = []
        for start, stop, axis in zip(starts, stops, axes, strict=True):
            size = shape[axis]
            if start != 0 or stop < (size if isinstance(size, int) else END):
                found.append(picked_range(axis % len(shape), start, stop, size))
        return found

    def reshaped(self, node: Any, pick: Pick) -> list[Any] | None:
        """Return what says a shape with fewer rows: a constant, or a node and its constant; [] = as it is.

        None where the shape cannot be said.
        """
        fixed = self.constants.get(node.input[1])
        if fixed is not None and pick.axis < fixed.size:
            if fixed[pick.axis] in (0, -1):
                return []
            return [np.array([*fixed[: pick.axis], pick.count, *fixed[pick.axis + 1 :]], np.int64)]
        made = next((n for n in self.graph.node if node.input[1] in n.output), None)
        if made is None or made.op_type != "Concat" or pick.axis >= len(made.input):
            return None
        if any(self.shapes.get(name) != (1,) for name in made.input):
            return None
        return [made, np.array([pick.count], np.int64)]


class _Rewriting:
    """Writes the nodes anew."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._names = 0
        self._sliced: dict[tuple[str, Pick], str] = {}

    def nodes(self) -> Iterator[Any]:
        plan = self._plan
        for k, node in enumerate(plan.graph.node):
            changed = type(node)()
            changed.CopyFrom(node)
            for place, (name, pick) in enumerate(zip(node.input, plan.wanted[k], strict=True)):
                if pick is not None and not plan.is_narrow(name):
                    if (name, pick) not in self._sliced:
                        yield self._slice(name, pick)
                    changed.input[place] = self._sliced[name, pick]
            if k in plan.narrowed and node.op_type == "Reshape":
                yield from self._reshaped(node, changed, plan.wanted[k][0])
            elif k in plan.narrowed and node.op_type == "Slice":
                changed = self._identity(changed)
            elif k in plan.seeds and plan.wanted[k][0] is not None and k not in plan.narrowed:
                changed = self._taken(node, changed)
            yield changed

    def _slice(self, name: str, pick: Pick) -> Any:
        made = self._sliced[name, pick] = self._name()
        parts = [self._constant(np.array([n], np.int64)) for n in (pick.start, pick.stop, pick.axis)]
        return helper.make_node("Slice", [name, *parts], [made], name=made)

    def _reshaped(self, node: Any, changed: Any, pick: Pick | None) -> Iterator[Any]:
        assert pick is not None
        shape = self._plan.reshaped(node, pick)
        assert shape is not None
        if len(shape) == 2:
            concat = type(node)()
            concat.CopyFrom(shape[0])
            concat.name = concat.output[0] = self._name()
            concat.input[pick.axis] = self._constant(shape[1])
            changed.input[1] = concat.output[0]
            yield concat
        elif shape:
            changed.input[1] = self._constant(shape[0])

    def _taken(self, node: Any, changed: Any) -> Any:
        """Return what takes the rows where there are no others: of one row the first."""
        if node.op_type == "Slice":
            return self._identity(changed)
        index = self._plan.constants[node.input[1]]
        changed.input[1] = self._constant(np.zeros_like(index))
        return changed

    def _identity(self, node: Any) -> Any:
        return helper.make_node("Identity", node.input[:1], node.output, name=node.name)

    def _constant(self, value: Any) -> str:
        name = self._name()
        self._plan.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def _name(self) -> str:
        self._names += 1
        return f"{_PREFIX}_{self._names}"


def _drop_unused(graph: Any) -> None:
    """Take out the nodes and constants that nothing is made of any more."""
    read, nodes = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            read.update(node.input)
            nodes.append(node)
    for k in reversed(range(len(graph.initializer))):
        if graph.initializer[k].name not in read:
            del graph.initializer[k]
    del graph.node[:]
    graph.node.extend(reversed(nodes))


def _shapes(model: Any) -> dict[str, Shape]:
    graph = onnx.shape_inference.infer_shapes(_light(model), data_prop=True).graph
    shapes: dict[str, Shape] = {one.name: tuple(one.dims) for one in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.tensor_type.HasField("shape"):
            shapes[info.name] = tuple(map(_size, info.type.tensor_type.shape.dim))
    return shapes


def _light(model: Any) -> Any:
    """Return a copy without the values of large constants, on which no shape depends: it takes no time."""
    light = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    for name in ("node", "input", "output", "value_info"):
        getattr(light.graph, name).extend(getattr(model.graph, name))
    for one in model.graph.initializer:
        is_small = np.prod(one.dims, dtype=int) <= _SMALL
        light.graph.initializer.append(
            one if is_small else onnx.TensorProto(name=one.name, dims=one.dims, data_type=one.data_type)
        )
    return light


def _size(dim: Any) -> int | str | None:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None


def _constants(graph: Any) -> dict[str, Any]:
    """Return the small constants, by name."""
    tensors = {one.name: one for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors.update((node.output[0], one.t) for one in node.attribute if one.name == "value")
    return {
        name: numpy_helper.to_array(one)
        for name, one in tensors.items()
        if one.data_location != onnx.TensorProto.EXTERNAL and np.prod(one.dims, dtype=int) <= _SMALL
    }
