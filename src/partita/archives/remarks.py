"""What an archive's configuration says that has no effect here, in words for a warning."""

from collections.abc import Mapping
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

_NOT_OFFERED = "is not offered"
_EFFECTLESS: dict[str, tuple[tuple[Any, ...], str]] = {
    "deviceType": (("cpu",), "archives are executed on the CPU"),
    "deviceIds": ((), "archives are executed on the CPU, on the cores of their plan"),
    "maxRetryTimeoutInSec": ((300,), "a worker that dies is started again after pauses of our own"),
    "useJobTicket": ((False,), "requests wait in the queue, which jobQueueSize bounds"),
    "parallelType": (("", "none", "custom"), _NOT_OFFERED),
    "parallelLevel": ((0, 1), _NOT_OFFERED),
    "torchrun": ((), _NOT_OFFERED),
    "useVenv": ((False,), "an archive's packages lie beside its files; see requirements"),
    "continuousBatching": ((False,), _NOT_OFFERED),
    "asyncCommunication": ((False,), _NOT_OFFERED),
    "sequenceBatching": ((False,), _NOT_OFFERED),
    "stateful": ((False,), _NOT_OFFERED),
    "sequenceMaxIdleMSec": ((0,), _NOT_OFFERED),
    "sequenceTimeoutMSec": ((0,), _NOT_OFFERED),
    "maxNumSequence": ((0, 1), _NOT_OFFERED),
    "maxSequenceJobQueueSize": ((0, 1), _NOT_OFFERED),
}
"""Keys that TorchServe knows: values that ask for nothing, and why others change nothing here."""
_BRIEF = Repr()
_BRIEF.maxlevel = 2


def remarks(document: Mapping[str, Any], known: frozenset[str], *, is_handlers: bool) -> list[str]:
    """Return what is to be said of the keys that are not `known`, each as the rest of a sentence.

    With `is_handlers` the file is also the handler's own: its sections are left to it, and what is no
    setting of the server is said to be.
    """
    found = []
    for key, value in document.items():
        if key in _EFFECTLESS:
            harmless, reason = _EFFECTLESS[key]
            if value is not None and value not in harmless:
                found.append(f"{key} = {shown(value)} changes nothing here: {reason}")
        elif key not in known and not (is_handlers and isinstance(value, dict)):
            found.append(_unknown(str(key), known, is_handlers=is_handlers))
    return found


def shown(value: object) -> str:
    """Return a value of YAML in a few characters: one made of aliases may be endless in words."""
    try:
        return _BRIEF.repr(value)[:40]
    except ValueError:  # of more digits than Python writes
        return "a very long number"


def _unknown(key: str, known: frozenset[str], *, is_handlers: bool) -> str:
    folded = {name.lower(): name for name in (*known, *_EFFECTLESS)}
    near = get_close_matches(key.replace("_", "").lower(), folded, n=1, cutoff=0.8)
    hint = f"; did you mean {folded[near[0]]}?" if near else ""
    left = ", and is left to the handler" if is_handlers and not hint else ""
    return f"{key:.80} is no setting that is known{left}{hint}"
