"""Choices on disk: a small JSON document beside the profiles, for each model on each machine."""

import hashlib
from pathlib import Path

import msgspec

from partita.core.choice import Allowance, Choice
from partita.core.profile import Provenance
from partita.profiling.inputs import DEFAULT_AXIS
from partita.profiling.store import write_whole

FORMAT = 1


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the document holds."""

    partita_choice: int
    choice: Choice


def choice_path(folder: Path, provenance: Provenance, allowed: Allowance | None) -> Path:
    """Return where the choice for a model on this machine lies, whether it is there or not.

    `provenance` is that of the reference. What the choice is about, runtimes and their versions, does not
    count; what lower precision may be off does, so that nobody gets it without having asked for it.
    """
    known = {
        "model": provenance.model_hash,
        "handler": provenance.handler_hash,
        "cpu": provenance.cpu_model,
        "topology": provenance.topology,
        "dimensions": {n: s for n, s in sorted(provenance.dimensions.items()) if s != DEFAULT_AXIS},
        "allowed_deviation": None if allowed is None else allowed.deviation,
    }
    if allowed is not None and allowed.top1 is not None:
        known["top1_agreement"] = allowed.top1
    key = hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()
    return folder / f"{key[:32]}.json"


def save_choice(path: Path, choice: Choice) -> None:
    """Write it, whole or not at all. Raises `SaveFailed`."""
    document = _File(partita_choice=FORMAT, choice=choice)
    write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n", "the choice")


def load_choice(path: Path) -> Choice | None:
    """Return the choice that a file holds; None if there is none that can be read."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError):
        return None
    return file.choice if file.partita_choice == FORMAT and file.choice.is_consistent else None
