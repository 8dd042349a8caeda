"""A model over all of a file's items, offline: cut in segments, many in flight, joined in order."""

import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partita.core.errors import InvalidInput, InvalidRequest, QueueFull, RequestError
from partita.core.segments import segment_count, segment_rows
from partita.embedded import Answer, Server
from partita.offline_output import Collected, Joined, Mapped
from partita.sources import ModelSource

Arrays = dict[str, NDArray[Any]]
Progress = Callable[[int, int], None]
"""Called with (items done, items in all) after every segment."""

SEGMENT = 128
"""Items of a segment where neither the caller nor an ensemble says. Any number is right: an instance takes
as many as its plan says."""
_Waiting = tuple[int, Arrays, "Future[Answer]"]
"""(number, items, answer to come) of a segment."""
_MOST_SEGMENTS = 16
"""Handed in at once: enough to keep all instances busy, and not all of the input in memory twice."""
_BATCHES_AHEAD = 3
"""For each instance: one executes, one waits in its channel, one is on its way. Of few segments at once the
memory is used again while it is in the caches still."""


def predict(
    model: str | PathLike[str] | ModelSource,
    inputs: Mapping[str, ArrayLike] | ArrayLike | PathLike[str],
    *,
    cores: int | str | None = None,
    tune: str | None = None,
    segment: int | None = None,
    progress: Progress | bool | None = None,
    output: str | PathLike[str] | None = None,
) -> Answer:
    """Return the model's outputs by name for all items; first axis of every array: the items.

    ``progress=True`` shows a bar on standard error. `output` names an .npy that a model's one output is
    written to as it comes, so that neither side need fit in memory; the answer then is that file, mapped.
    A model with one input takes the array itself. A path names an .npy, which is mapped and not read as a
    whole, or an .npz. Raises `InvalidInput` if it cannot be read, or if the arrays differ in length or are
    empty, `InvalidRequest` if they do not fit the model, and whatever the model fails with, naming the
    segment. The answer's ``missing`` names members of an ensemble that had no part in some segment.
    """
    if isinstance(inputs, (str, PathLike)):
        inputs = read_arrays(inputs)
    with Server([model], cores=cores, tune=tune) as server:
        (name,) = server.head.engine.services
        with _shown(progress) as told:
            return predict_with(server, name, inputs, segment=segment, progress=told, output=output)


@contextmanager
def _shown(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Yield what is called after every segment; for True it draws a bar."""
    if progress is not True:
        yield progress or None
        return
    from partita.cli.console import progress as bar

    with bar("predicting", None) as advance:
        yield lambda done, total: advance(done, total, f"{done} of {total} items")


def read_arrays(file: str | PathLike[str]) -> Arrays | NDArray[Any]:
    """Return the array of an .npy, mapped, or those of an .npz by name; raises `InvalidInput`.

    Pickled objects are refused: they could run code.
    """
    try:
        loaded = np.load(file, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{file} is no .npy or .npz of plain arrays, or empty: {error}") from error


def predict_with(
    server: Server,
    model: str,
    inputs: Mapping[str, ArrayLike] | ArrayLike,
    *,
    segment: int | None = None,
    progress: Progress | None = None,
    output: str | PathLike[str] | None = None,
) -> Answer:
    """Return the outputs as `predict` does, from a running server."""
    signature = server.signature(model)
    if not isinstance(inputs, Mapping):
        if len(signature.inputs) != 1:
            wanted = ", ".join(spec.name for spec in signature.inputs)
            raise InvalidInput(f"model {model} has several inputs; give them by name: {wanted}")
        inputs = {signature.inputs[0].name: inputs}
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    total = _length(arrays)
    queue_items = server.head.engine.service(model).settings.rules.max_queue_items
    step = min(segment or server.segment(model) or SEGMENT, queue_items) if signature.batched else 1
    room = max(1, min(_segments_at_once(server, model, step), queue_items // step))
    collected: Collected = Joined(np.concatenate if signature.batched else np.stack)
    if output is not None:
        collected = Mapped(Path(output), total, batched=signature.batched)
    missing: set[str] = set()
    done = 0
    try:
        segments = _segments(arrays, total, step, batched=signature.batched)
        for outputs in _in_order(server, model, segments, room):
            collected.add(outputs)
            missing.update(outputs.missing)
            done = min(total, done + step)
            if progress is not None:
                progress(done, total)
        whole = collected.finish()
    finally:
        collected.discard()
    whole.missing = tuple(sorted(missing))
    return whole


def _segments_at_once(server: Server, model: str, step: int) -> int:
    """Return how many segments keep every instance of a model, or of its slowest member, supplied."""
    instances = list(server.head.engine.service(model).member.instances.values())
    items = _BATCHES_AHEAD * sum(instance.spec.batch for instance in instances)
    return min(_MOST_SEGMENTS, max(2, -(-items // step)))


def _length(arrays: Mapping[str, NDArray[Any]]) -> int:
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or min(lengths.values()) == 0:
        told = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InvalidInput(
            f"all inputs need the same number of items, 1 or more, on their first axis: {told}"
        )
    return next(iter(lengths.values()))


def _segments(
    arrays: Mapping[str, NDArray[Any]], total: int, step: int, *, batched: bool
) -> Iterator[Arrays]:
    """Yield the arrays' rows [s·step, (s+1)·step), or single items without the axis."""
    for segment in range(segment_count(total, step)):
        rows = segment_rows(segment, step, total)
        yield {name: array[rows] if batched else array[rows.start] for name, array in arrays.items()}


def _in_order(server: Server, model: str, segments: Iterator[Arrays], room: int) -> Iterator[Answer]:
    """Yield the answers in order, `room` segments handed in at any time."""
    waiting: deque[_Waiting] = deque()
    try:
        for number, segment in enumerate(segments):
            if len(waiting) >= room:
                yield _oldest(server, model, waiting)
            waiting.append((number, segment, server.submit(model, segment, copy=False)))
        while waiting:
            yield _oldest(server, model, waiting)
    finally:
        for _, _, future in waiting:
            future.cancel()


def _oldest(server: Server, model: str, waiting: "deque[_Waiting]") -> Answer:
    """Return the oldest answer; a segment that found no room is handed in again once the others are done."""
    number, segment, future = waiting.popleft()
    try:
        try:
            return future.result()
        except QueueFull:
            wait(other for _, _, other in waiting)
            return server.submit(model, segment, copy=False).result()
    except InvalidRequest:
        raise
    except RequestError as error:
        raise type(error)(f"segment {number}: {error}") from error
