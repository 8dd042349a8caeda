"""Runtimes by name: our own, and those that installed packages offer as entry points."""

from importlib import import_module

from partita.core.errors import InvalidInput, MissingExtra
from partita.core.formats import ENTRY_POINT_GROUP, extra_of
from partita.worker.runtimes.interface import Loader

_OWN = {
    "boxes": "partita.worker.runtimes.boxes",
    "onnxruntime": "partita.worker.runtimes.onnxruntime",
    "openvino": "partita.worker.runtimes.openvino",
    "python": "partita.worker.runtimes.python",
    "rule": "partita.worker.runtimes.rule",
    "torch-compile": "partita.worker.runtimes.torch_compile",
    "torch-eager": "partita.worker.runtimes.torch_eager",
    "torch-script": "partita.worker.runtimes.torch_script",
    "torchserve": "partita.worker.archive.runtime",
}
_RULES = {"boxes", "rule"}
"""These combine predictions, and execute no model."""


def runtime_loader(name: str) -> Loader:
    """Return the loader of the named runtime.

    Raises `InvalidInput` for an unknown name, `MissingExtra` if its package is not installed.
    """
    if name in _OWN:
        return _own_loader(name)
    from importlib.metadata import entry_points  # costs a worker of ours some 30 ms of its start

    offered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name in offered:
        loader: Loader = offered[name].load()
        return loader
    known = ", ".join(sorted({*_OWN, *offered} - _RULES))
    raise InvalidInput(f"unknown runtime {name!r}; there are {known}")


def _own_loader(name: str) -> Loader:
    try:
        loader: Loader = import_module(_OWN[name]).load
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("partita"):
            raise
        raise MissingExtra(
            f"runtime {name} needs the package {error.name}: pip install 'partita[{extra_of(name)}]'"
        ) from error
    return loader
