"""An archive's handler: found, loaded and made ready, with its envelope."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from partita.core.errors import InvalidInput, LoadFailed, MissingExtra, PartitaError
from partita.worker.archive.ts.context import Context
from partita.worker.archive.ts.utils.util import list_classes_from_module
from partita.worker.user_code import describe

EXTRA = "partita[torchserve]"
DEFAULTS = ("image_classifier", "image_segmenter", "object_detector", "text_classifier")
ENVELOPES = ("body", "json", "kserve", "kservev2")
Handle = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """What answers a batch of requests, and what makes it ready."""

    handle: Handle
    initialize: Callable[[Any], Any]
    name: str


def find_handler(folder: Path, reference: str, envelope: str = "") -> Handler:
    """Return the handler that an archive names: a default one, ``FILE.py``, or ``FILE.py:function``.

    Raises `InvalidInput`, `MissingExtra` or `LoadFailed`.
    """
    try:
        module, function = _module(folder, reference)
        handler = _entry(module, function, reference)
    except PartitaError:
        raise
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"handler {reference} cannot be loaded: {describe(error, folder)}") from error
    return Handler(_enveloped(handler.handle, envelope), handler.initialize, handler.name)


def make_ready(handler: Handler, context: Context, folder: Path) -> None:
    """Initialize a handler. Raises `LoadFailed` or `MissingExtra`."""
    try:
        handler.initialize(context)
    except MemoryError:
        raise
    except ModuleNotFoundError as error:
        raise _missing(error, handler.name) from error
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"handler {handler.name} cannot be made ready: {describe(error, folder)}") from error


def _module(folder: Path, reference: str) -> tuple[ModuleType, str]:
    name, _, function = reference.partition(":")
    name = name.rsplit("/", maxsplit=1)[-1].removesuffix(".py")
    file = folder / f"{name}.py"
    try:
        if file.is_file():
            return _load(name, file), function
        if name in DEFAULTS:
            return importlib.import_module(f"partita.worker.archive.ts.torch_handler.{name}"), function
    except ModuleNotFoundError as error:
        raise _missing(error, reference) from error
    known = ", ".join(DEFAULTS)
    raise InvalidInput(f"handler {reference!r}: the archive holds no {name}.py, and there are only {known}")


def _missing(error: ModuleNotFoundError, handler: str) -> PartitaError:
    package = (error.name or "").partition(".")[0]
    if package in ("torch", "PIL", "yaml", "numpy"):
        return MissingExtra(f"handler {handler} needs the package {package}: pip install '{EXTRA}'")
    if package in ("torchvision", "torchtext", "captum", "transformers"):
        return MissingExtra(f"handler {handler} needs the package {package}: pip install {package}")
    return LoadFailed(f"handler {handler} needs the package {error.name}, which is not installed")


def _load(name: str, file: Path) -> ModuleType:
    """Run a file of the archive as the module of its name, as others of its files may import it."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


def _entry(module: ModuleType, function: str, reference: str) -> Handler:
    found = getattr(module, function or "handle", None)
    if callable(found):
        return Handler(found, lambda context: found(None, context), reference)
    if function:
        raise InvalidInput(f"handler {reference!r}: there is no function {function}")
    classes = list_classes_from_module(module)
    usable = [cls for cls in classes if callable(getattr(cls, "handle", None))]
    if len(usable) != 1:
        names = ", ".join(cls.__name__ for cls in classes) or "none"
        raise InvalidInput(
            f"handler {reference!r} must define a function handle, or one class with a method handle; "
            f"its classes: {names}"
        )
    owner = usable[0]()
    initialize = getattr(owner, "initialize", None)
    return Handler(owner.handle, initialize or (lambda _: None), reference)


def _enveloped(handle: Handle, envelope: str) -> Handle:
    if not envelope:
        return handle
    if envelope not in ENVELOPES:
        raise InvalidInput(f"envelope {envelope!r} is not one of {', '.join(ENVELOPES)}")
    module = importlib.import_module(f"partita.worker.archive.ts.torch_handler.request_envelope.{envelope}")
    (cls,) = list_classes_from_module(module)
    found: Handle = cls(handle).handle
    return found
