"""Torch's files, read without unpickling: exported programs, files of weights, and what a ``.pt`` is.

A pickle may run any code when it is read. TorchScript's archives are read by an interpreter that knows
tensors and TorchScript's own classes alone; weights are read as weights only; of an exported program, every
part that torch would unpickle, or evaluate as Python, is looked for first.
"""

import ast
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from partita.core.errors import InvalidInput, LoadFailed

UNPICKLE = "unpickle_may_run_code"
"""Option that allows unpickling a file, which may run any code that somebody put into it."""

_PICKLED = re.compile(r"^[^/]+/(data/constants/(custom_obj|opaque_obj)|data/aotinductor/|.*\.so$)")
_FUNCTION = re.compile(r"^[A-Z][A-Za-z0-9]*$")
_WORD = re.compile(r"^[A-Za-z0-9_]*$")
_ARITHMETIC = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop),
)
_JSON_BYTES = 1 << 28


def check_file(path: Path) -> None:
    """Raise `InvalidInput` if there is no such file."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")


def is_script(path: Path) -> bool:
    """Whether a file is a TorchScript archive; raises `InvalidInput` if there is none."""
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return any(re.match(r"^[^/]+/code/", name) for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def load_program(path: Path, *, may_unpickle: bool) -> torch.export.ExportedProgram:
    """Return the exported program of a ``.pt2`` file. Raises `InvalidInput` or `LoadFailed`."""
    check_file(path)
    if not may_unpickle:
        _check_program(path)
    try:
        with _weights_only(not may_unpickle):
            return torch.export.load(path)
    except MemoryError:
        raise
    except Exception as error:
        raise LoadFailed(f"torch cannot load {path.name}: {short(error)}") from error


def load_weights(path: Path, *, may_unpickle: bool) -> Any:
    """Return a state dict, its tensors mapped from the file; or the pickled module, if that is allowed.

    Mapped weights are in memory once, however many instances there are. Raises `InvalidInput` or
    `LoadFailed`.
    """
    check_file(path)
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        return torch.load(path, map_location="cpu", weights_only=not may_unpickle, mmap=_is_zip(path))
    except (MemoryError, InvalidInput):
        raise
    except Exception as error:
        hint = "" if may_unpickle else f"; if it holds more than weights, see option {UNPICKLE}"
        raise LoadFailed(f"torch cannot read weights from {path.name}: {short(error)}{hint}") from error


def short(error: BaseException) -> str:
    """Return the first lines of a message: torch's go on with hints, its own state and stack traces."""
    text = " ".join(str(error).partition("[Caused by")[0].split())
    return (text[:300] + " …" if len(text) > 300 else text) or type(error).__name__


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(path))


def _is_zip(path: Path) -> bool:
    return zipfile.is_zipfile(path)


class _weights_only:  # noqa: N801 used as a context, like those of torch
    """Have every ``torch.load`` within read weights only, also where torch's own code asks for more."""

    _VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._before: str | None = None

    def __enter__(self) -> None:
        self._before = os.environ.get(self._VARIABLE)
        if self._wanted:
            os.environ[self._VARIABLE] = "1"

    def __exit__(self, *_: object) -> None:
        if not self._wanted:
            return
        if self._before is None:
            os.environ.pop(self._VARIABLE, None)
        else:
            os.environ[self._VARIABLE] = self._before


def _check_program(path: Path) -> None:
    """Raise `LoadFailed` if reading an exported program would unpickle, or evaluate more than sums."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if _PICKLED.match(name):
                    raise _refused(path, f"{name} is code or a pickled object")
                if name.endswith(".json") and archive.getinfo(name).file_size <= _JSON_BYTES:
                    _check_document(path, name, json.loads(archive.read(name)))
    except (zipfile.BadZipFile, UnicodeDecodeError, json.JSONDecodeError, KeyError, OSError) as error:
        raise LoadFailed(f"{path.name} is no exported program: {short(error)}") from error


def _check_document(path: Path, name: str, document: Any) -> None:
    for key, value in _values(document):
        if key == "use_pickle" and value:
            raise _refused(path, f"{name} has pickled tensors")
        if key in ("expr_str", "expr") and isinstance(value, str) and not _is_arithmetic(value):
            raise _refused(path, f"{name} has the size {value[:60]!r}, which is no arithmetic")


def _is_arithmetic(text: str) -> bool:
    """Whether an expression of sizes, which torch evaluates as Python, does no more than sums.

    It is written as sympy's constructors, ``Mul(Integer(2), Symbol('s0', integer=True))``, or as a formula.
    """
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return False
    for node in nodes:
        if not isinstance(node, _ARITHMETIC):
            return False
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and _FUNCTION.match(node.func.id)
        ):
            return False
        if isinstance(node, ast.Name) and "__" in node.id:
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _WORD.match(node.value):
            return False
    return True


def _values(document: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from _values(value)
    elif isinstance(document, list):
        for value in document:
            yield from _values(value)


def _refused(path: Path, reason: str) -> LoadFailed:
    return LoadFailed(
        f"{path.name} is not loaded: {reason}, and reading it could run any code; if you trust the file, "
        f"set the option {UNPICKLE} = true"
    )
