"""A user's handler: a class with any of load, preprocess, infer, postprocess around a network.

``load(self, context)`` is called once. ``preprocess(self, items)`` gets a list of one dict of arrays per
item (no batch axis) and returns a dict of batched arrays for the network; without it the network gets
the items as they lie in memory. ``infer(self, batch)`` replaces the network (which it may call as
``context.network``). ``postprocess(self, outputs)`` gets the network's dict of batched arrays and
returns such a dict, or a list of one dict per item. Input arrays are read-only views of shared memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partita.core.errors import InferenceFailed, InvalidInput, LoadFailed
from partita.worker.runtimes.interface import Batch, LoadRequest, Option
from partita.worker.user_code import UserClass, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What ``load`` is told."""

    model_path: Path
    model_dir: Path
    name: str
    threads: int
    device: str
    options: Mapping[str, Option]
    network: Callable[[Batch], Batch] | None = None
    """The network, from a dict of arrays to one; None where the class itself is the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of one user object that are there."""

    owner: Any = None
    folder: Path | None = None
    preprocess: Callable[[list[Batch]], Batch] | None = None
    infer: Callable[[Batch], Batch] | None = None
    postprocess: Callable[[Batch], Any] | None = None
    examples: Callable[[int], Batch] | None = None
    """``examples(self, rows)``: inputs for warm-up where generated ones would not do."""


def load_stages(user: UserClass, request: LoadRequest, *, network: Callable[[Batch], Batch] | None) -> Stages:
    """Make the user's object and call its ``load``; raises `InvalidInput` or `LoadFailed`."""
    try:
        owner = user.cls()
        if hasattr(owner, "load"):
            owner.load(_context(request, network))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"{user} cannot be loaded: {describe(error, user.folder)}") from error
    stages = Stages(
        owner=owner,
        folder=user.folder,
        preprocess=getattr(owner, "preprocess", None),
        infer=getattr(owner, "infer", None),
        postprocess=getattr(owner, "postprocess", None),
        examples=getattr(owner, "examples", None),
    )
    if not (stages.preprocess or stages.infer or stages.postprocess):
        raise InvalidInput(f"{user} has none of the methods preprocess, infer, postprocess")
    return stages


def split_items(batch: Batch, rows: int, *, batched: bool) -> list[Batch]:
    """Return one dict of arrays per item, views of the batch."""
    if not batched:
        return [batch]
    return [{name: array[row] for name, array in batch.items()} for row in range(rows)]


def as_batch(result: Any, *, batched: bool, stage: str) -> Batch:
    """Return a stage's result as a dict of batched arrays; raises `InferenceFailed` if it is neither form."""
    if isinstance(result, dict):
        return {name: np.asarray(array) for name, array in result.items()}
    if isinstance(result, list) and result and all(isinstance(item, dict) for item in result):
        return _joined(result, batched=batched, stage=stage)
    raise InferenceFailed(
        f"{stage} returned {type(result).__name__}; a dict of arrays with the batch axis, "
        "or a list of one dict per item, is expected"
    )


def _joined(items: list[dict[str, Any]], *, batched: bool, stage: str) -> Batch:
    if not batched:
        return {name: np.asarray(array) for name, array in items[0].items()}
    names = list(items[0])
    if any(list(item) != names and set(item) != set(names) for item in items):
        raise InferenceFailed(f"{stage} returned items with different names; the first has {names}")
    try:
        return {name: np.stack([np.asarray(item[name]) for item in items]) for name in names}
    except ValueError as error:
        raise InferenceFailed(f"{stage} returned items whose shapes differ: {error}") from error


def _context(request: LoadRequest, network: Callable[[Batch], Batch] | None) -> Context:
    path = request.file
    return Context(
        model_path=path,
        model_dir=path.parent,
        name=request.model,
        threads=request.threads,
        device=request.device,
        options=dict(request.options),
        network=network,
    )
