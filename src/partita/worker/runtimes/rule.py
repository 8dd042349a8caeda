"""A user's own combination rule, ``FILE.py:Class``: start, update for every member, finish.

Its inputs are the members' predictions by the members' names. One batch is one request.
"""

import platform
from typing import Any

import numpy as np

from partita.core.errors import InferenceFailed, InvalidInput, LoadFailed
from partita.core.tensors import Signature
from partita.worker.declared import declared_specs
from partita.worker.runtimes.interface import Batch, LoadRequest
from partita.worker.user_code import describe, load_class

METHODS = ("start", "update", "finish")
OUTPUT = "output"
"""Name of what `finish` returns, where that is an array and not a dict of arrays."""


def load(request: LoadRequest) -> "RuleRuntime":
    """Make the rule; raises `InvalidInput` or `LoadFailed`."""
    user = load_class(request.path)
    missing = [name for name in METHODS if not callable(getattr(user.cls, name, None))]
    if missing:
        raise InvalidInput(f"{user} is no combination rule: it has no method {', '.join(missing)}")
    try:
        owner = user.cls()
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"{user} cannot be made: {describe(error, user.folder)}") from error
    return RuleRuntime(owner, request)


class RuleRuntime:
    """One object of the user's class, started anew for every request."""

    version = platform.python_version()
    threads_seen = None

    def __init__(self, owner: Any, request: LoadRequest) -> None:
        self._owner = owner
        assert request.inputs is not None
        outputs = declared_specs(owner, "outputs", batched=True) or ()
        self.signature = Signature(inputs=request.inputs, outputs=outputs)

    def infer(self, batch: Batch) -> Batch:
        """Hand every member's predictions to the rule, in the order of the members."""
        n_items = len(next(iter(batch.values())))
        self._owner.start(n_items, list(batch))
        for member, predictions in batch.items():
            self._owner.update(slice(0, n_items), member, predictions)
        combined = self._owner.finish()
        if isinstance(combined, dict):
            return {str(name): np.asarray(array) for name, array in combined.items()}
        if combined is None:
            raise InferenceFailed("finish returned nothing; an array, or a dict of arrays, is expected")
        return {OUTPUT: np.asarray(combined)}
