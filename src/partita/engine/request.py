"""One request while the engine holds it, and whom to tell how it ended."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from partita.core.errors import RequestError
from partita.engine.arena import Extent
from partita.machines.work import Job

if TYPE_CHECKING:
    from partita.engine.observing import Watch

Buffer = bytes | bytearray | memoryview
Shapes = tuple[tuple[int, ...], ...]


class DegradedShapes(tuple[tuple[int, ...], ...]):
    """Shapes of an ensemble's answer that some members have no part in, by name.

    Equal to no other shapes, so that nothing that is remembered by shapes stands for it.
    """

    missing: tuple[str, ...]

    def __new__(cls, shapes: Shapes, missing: tuple[str, ...]) -> "DegradedShapes":
        """Return these shapes, with the members that are missing."""
        made = super().__new__(cls, shapes)
        made.missing = missing
        return made

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def missing_members(shapes: Shapes) -> tuple[str, ...]:
    """Return the members that had no part in the answer of these shapes."""
    return shapes.missing if isinstance(shapes, DegradedShapes) else ()


class Sink(Protocol):
    """Takes the one outcome of a request: exactly one of these is called, once, on the engine's loop."""

    def answered(self, request: "Request", outputs: Sequence[Buffer], shapes: Shapes) -> None:
        """All items were executed. `outputs` are in signature order, row-major, little-endian.

        `shapes` include the batch axis where the model has one, and `missing_members` tells from them who has
        no part in the answer. The buffers are valid only during the
        call: whoever keeps them copies them.
        """
        ...

    def failed(self, request: "Request", error: RequestError) -> None:
        """The request ended without an answer."""
        ...


@runtime_checkable
class PartSink(Sink, Protocol):
    """Also takes parts of the answer, as they come; `answered` then has what is left of it."""

    def part(self, request: "Request", data: bytes) -> None:
        """A part is there. What the bytes mean is between the runtime and the protocol."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How the items of a request lie in X: equal layouts share extents and batches."""

    lane: Hashable
    row_bytes: tuple[int, ...]
    """Bytes of one item of each input."""
    shapes: tuple[tuple[int, ...], ...] | None = None
    """Item shape of each input, where the signature leaves it open."""
    is_ragged: bool = False
    """Whether items differ in size (BYTES inputs): then each item lies by itself."""


class Request:
    """n items of one client, answered together and in order."""

    __slots__ = (
        "arrived_s",
        "context",
        "deadline_s",
        "ended",
        "extent",
        "first_row",
        "item_spans",
        "jobs",
        "layout",
        "missing_items",
        "n_items",
        "partial",
        "sink",
        "watch",
    )

    def __init__(self, n_items: int, layout: Layout, sink: Sink, context: Any, arrived_s: float) -> None:
        self.n_items = n_items
        self.missing_items = n_items
        """Items whose outputs are not there yet."""
        self.layout = layout
        self.sink = sink
        self.watch: Watch | None = None
        """Who notes what happens to it, if anybody."""
        self.context = context
        """The protocol's own; never looked into here."""
        self.arrived_s = arrived_s
        self.deadline_s: float | None = None
        self.extent: Extent | None = None
        self.first_row = 0
        self.item_spans: list[tuple[tuple[int, ...], tuple[int, ...]]] | None = None
        """Of a ragged request, each item's (offsets, sizes) in X."""
        self.jobs: list[Job] = []
        self.partial: list[tuple[int, list[bytes], Shapes]] | None = None
        """Outputs of the pieces that are there so far: (first item, outputs, shapes of one item)."""
        self.ended = False


Outputs = tuple[list[Buffer], Shapes]


def joined(partial: Sequence[tuple[int, list[bytes], Shapes]]) -> Outputs | None:
    """Put the pieces of one request together in item order; None if their item shapes differ."""
    ordered = sorted(partial, key=lambda piece: piece[0])
    shapes = ordered[0][2]
    if any(piece[2] != shapes for piece in ordered):
        return None
    return [b"".join(parts) for parts in zip(*(p[1] for p in ordered), strict=True)], shapes
