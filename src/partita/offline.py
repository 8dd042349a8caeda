"""A model over all of a file's items, offline: cut in segments, many in flight, joined in order."""

import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from partita.core.clock import Clock
from partita.core.errors import InvalidInput, InvalidRequest, QueueFull, RequestError
from partita.core.segments import segment_count, segment_rows
from partita.embedded import Answer, Server
from partita.engine.ensemble import Ensemble
from partita.engine.service import Service
from partita.offline_output import Collected, Joined, Mapped
from partita.offline_runs import Runs, most_in_flight
from partita.settings import Settings
from partita.sources import ModelSource, find_all
from partita.system.clock import SystemClock

Arrays = dict[str, NDArray[Any]]
Progress = Callable[[int, int], None]
"""Called with (items done, items in all) after every segment."""

SEGMENT = 128
"""Items of a segment where neither the caller nor an ensemble says. Any number is right: an instance takes
as many as its plan says."""
QUEUE_ITEMS = 8192
"""Items that may wait where nobody but the run asks the model."""
_MOST_SEGMENTS = 16
"""In flight, of a model that is not swift: enough to keep all instances busy, and not all of the input in
memory twice."""
_MEMORY_SHARE = 0.5
"""Of the memory for a model's items, for what is in flight."""
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
    found = (model,) if isinstance(model, ModelSource) else find_all((Path(model),), Settings())
    if len(found) != 1:
        names = ", ".join(source.name for source in found)
        raise InvalidInput(f"{model} holds {len(found)} models; name one of them: {names}")
    with Server([for_this_alone(found[0])], cores=cores, tune=tune) as server, _shown(progress) as told:
        return predict_with(server, found[0].name, inputs, segment=segment, progress=told, output=output)


def for_this_alone(source: ModelSource) -> ModelSource:
    """Return a model to be served for one offline run, whose items are all that will ever wait for it."""
    room = max(source.settings.queue_size, QUEUE_ITEMS)
    return replace(source, settings=msgspec.structs.replace(source.settings, queue_size=room))


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
        # numpy takes whatever else it is for pickled objects, and says how to load such
        because = "" if "pickle" in str(error) else f": {error}"
        raise InvalidInput(f"{file} is no .npy or .npz of plain arrays, or empty{because}") from error


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
    service = server.head.engine.service(model)
    item_bytes = sum(array.nbytes // len(array) for array in arrays.values() if array.dtype != object)
    most = _items_in_flight(service, item_bytes)
    step = min(segment or server.segment(model) or SEGMENT, most) if signature.batched else 1
    cut = _Cut(arrays, total, step, batched=signature.batched)
    runs = _runs(service, step, most // step, step * item_bytes, signature.batched)
    collected: Collected = Joined(np.concatenate if signature.batched else np.stack)
    if output is not None:
        collected = Mapped(Path(output), total, batched=signature.batched)
    missing: set[str] = set()
    done = 0
    try:
        for outputs, segments in _in_order(server, model, cut, runs, SystemClock()):
            collected.add(outputs)
            missing.update(outputs.missing)
            for _ in range(segments):
                done = min(total, done + step)
                if progress is not None:
                    progress(done, total)
        whole = collected.finish()
    finally:
        collected.discard()
    whole.missing = tuple(sorted(missing))
    return whole


def _items_in_flight(service: Service, item_bytes: int) -> int:
    """Return how many items may be in flight: what the queue takes, and half the memory for items."""
    items = service.settings.rules.max_queue_items
    return max(1, min(items, int(_MEMORY_SHARE * service.settings.arena_bytes) // max(1, item_bytes)))


def _runs(service: Service, step: int, most: int, segment_bytes: int, batched: bool) -> Runs:
    """Return how the segments are handed in: enough that every instance, or each of the slowest member, is
    supplied. A rule that runs in a worker gets every segment by itself, and so does a model without batches.
    """
    batches = _BATCHES_AHEAD * sum(one.spec.batch for one in service.member.instances.values())
    ahead = min(_MOST_SEGMENTS, max(2, -(-batches // step)), most)
    is_apart = isinstance(service, Ensemble) and service.group.second_stage is not None
    most = most_in_flight(segment_bytes, ahead=ahead, most=most)
    return Runs(ahead=ahead, most=most, alone=is_apart or not batched)


def _length(arrays: Mapping[str, NDArray[Any]]) -> int:
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or min(lengths.values()) == 0:
        told = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InvalidInput(
            f"all inputs need the same number of items, 1 or more, on their first axis: {told}"
        )
    return next(iter(lengths.values()))


class _Cut(NamedTuple):
    """Arrays, cut in segments."""

    arrays: Arrays
    total: int
    step: int
    batched: bool

    @property
    def segments(self) -> int:
        """How many there are."""
        return segment_count(self.total, self.step)

    def rows(self, segment: int, count: int) -> Arrays:
        """Return the items of so many segments, or a single one without the axis where there is none."""
        start, stop = segment_rows(segment, self.step, self.total).start, (segment + count) * self.step
        if not self.batched:
            return {name: array[start] for name, array in self.arrays.items()}
        return {name: array[start:stop] for name, array in self.arrays.items()}


class _Waiting(NamedTuple):
    """Segments that were handed in as one request, and the answer to come."""

    first: int
    length: int
    future: "Future[Answer]"


def _in_order(
    server: Server, model: str, cut: _Cut, runs: Runs, clock: Clock
) -> Iterator[tuple[Answer, int]]:
    """Yield the answers in order, each with the number of segments that it is to."""
    waiting: deque[_Waiting] = deque()
    begun = 0
    try:
        while begun < cut.segments or waiting:
            while begun < cut.segments and (count := runs.next(cut.segments - begun)):
                future = server.submit(model, cut.rows(begun, count), copy=False)
                waiting.append(_Waiting(begun, count, future))
                runs.handed_in(count)
                begun += count
            oldest = waiting.popleft()
            yield from _answers(server, model, cut, runs, oldest, [one.future for one in waiting])
            runs.answered(oldest.length, clock.now_s())
    finally:
        for one in waiting:
            one.future.cancel()


def _answers(
    server: Server, model: str, cut: _Cut, runs: Runs, run: _Waiting, others: "list[Future[Answer]]"
) -> Iterator[tuple[Answer, int]]:
    """Yield the answer to a run of segments, or one to each, if something is the matter with one of them.

    A segment that found no room is handed in again once the others are done.
    """
    try:
        answer = run.future.result()
    except InvalidRequest:
        raise
    except QueueFull:
        wait(others)
    except RequestError as error:
        if run.length == 1:
            raise _named(error, run.first) from error
    else:
        if run.length == 1 or not answer.missing:
            yield answer, run.length
            return
        runs.one_by_one()  # who is missing may be so for good
    for segment in range(run.first, run.first + run.length):
        try:
            yield server.submit(model, cut.rows(segment, 1), copy=False).result(), 1
        except InvalidRequest:
            raise
        except RequestError as error:
            raise _named(error, segment) from error


def _named(error: RequestError, segment: int) -> RequestError:
    return type(error)(f"segment {segment}: {error}")
