"""A user's Python file: loading a class from it, and saying where in it an error arose."""

import hashlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from partita.core.errors import InvalidInput, LoadFailed, PartitaError

_REASON_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class UserClass:
    """A class and the file that it was loaded from."""

    cls: type[Any]
    path: Path

    @property
    def folder(self) -> Path:
        """Where the user's code lies."""
        return self.path.parent

    def __str__(self) -> str:
        return f"{self.path.name}:{self.cls.__name__}"


def load_class(reference: str) -> UserClass:
    """Return the class that ``FILE.py:Class`` names.

    Raises `InvalidInput` if file or class do not exist, `LoadFailed` if the file itself raises.
    """
    path, name, module = _loaded(reference, "Class")
    found = getattr(module, name, None)
    if isinstance(found, type):
        return UserClass(found, path)
    classes = sorted(
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    )
    raise InvalidInput(f"{path} has no class {name!r}; it defines {', '.join(classes) or 'no class'}")


def call_function(reference: str) -> Any:
    """Return what the function that ``FILE.py:function`` names returns, called without arguments.

    Raises `InvalidInput` if file or function do not exist, `LoadFailed` if the file or the function raises.
    """
    path, name, module = _loaded(reference, "function")
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInput(f"{path} has no function {name!r}")
    try:
        return function()
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"{path.name}:{name} failed: {describe(error, path.parent)}") from error


def _loaded(reference: str, kind: str) -> tuple[Path, str, ModuleType]:
    filename, colon, name = reference.rpartition(":")
    if not colon or not filename or not name.isidentifier():
        raise InvalidInput(f"{reference!r} is not FILE.py:{kind}")
    path = Path(filename).resolve()
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    try:
        return path, name, _load_module(path)
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"loading {path.name} failed: {describe(error, path.parent)}") from error


def describe(error: BaseException, folder: Path | None = None) -> str:
    """Return one short line: where in the user's folder it arose, the exception's type and its message."""
    if isinstance(error, PartitaError):
        return str(error)[:_REASON_CHARACTERS]
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return (_where(error, folder) + text)[:_REASON_CHARACTERS]


def _where(error: BaseException, folder: Path | None) -> str:
    if folder is None:
        return ""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(folder):
        return f"{Path(error.filename).name}:{error.lineno}: "
    own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(folder)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}: " if own else ""


def _load_module(path: Path) -> ModuleType:
    """Run the file as a module of its own name, whatever else is called so, its folder importable."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"partita_user_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module
