"""Which of a model's axes is the batch, told from the shapes that its file states."""

from collections.abc import Sequence

_SEQUENCE_NAMES = frozenset({"seq", "seq_len", "sequence", "sequence_length", "length", "time", "tokens"})

Axes = Sequence[int | str | None]
"""Sizes of a tensor's axes: a number, a symbol's name, or None (or a negative number) for a free one."""


def batch_axis(inputs: Sequence[Axes], outputs: Sequence[Axes]) -> tuple[bool, int | None]:
    """Return whether these shapes have a leading batch axis, and the size that it is frozen at, if it is.

    A free leading axis of every tensor is the batch, unless inputs name it differently or after a
    sequence. A leading size common to all tensors is a frozen batch if an item is more than a number.
    """
    shapes = [*inputs, *outputs]
    if not inputs or not all(shapes):
        return False, None
    leading = [shape[0] for shape in shapes]
    if all(not isinstance(axis, int) or axis < 0 for axis in leading):
        names = {shape[0] for shape in inputs if isinstance(shape[0], str) and shape[0]}
        return len(names) <= 1 and not {n.lower() for n in names} & _SEQUENCE_NAMES, None
    first = leading[0]
    if isinstance(first, int) and set(leading) == {first} and any(len(shape) > 1 for shape in inputs):
        return True, first
    return False, None
