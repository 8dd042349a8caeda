"""Finds a user's handler class by reading its file; never imports it."""

import ast
from pathlib import Path

from partita.core.errors import InvalidInput

METHODS = {"preprocess", "infer", "postprocess"}


def find_handler(file: Path) -> str:
    """Return ``FILE.py:Class`` for the file's only class with one of a handler's methods.

    Raises `InvalidInput` if there is none, more than one, or the file is not Python.
    """
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"{file} is not Python: {error}") from error
    found = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and _is_handler(node)]
    if len(found) == 1:
        return f"{file}:{found[0]}"
    if found:
        raise InvalidInput(
            f'{file} has several handlers ({", ".join(found)}); name one: handler = "{file.name}:{found[0]}"'
        )
    raise InvalidInput(
        f"{file} has no class with a method preprocess, infer or postprocess; "
        f'if it inherits them, name it: handler = "{file.name}:Class"'
    )


def handler_reference(folder: Path, handler: str) -> str:
    """Return the absolute ``FILE.py:Class`` that a setting names, relative to the model's folder."""
    filename, colon, name = handler.rpartition(":")
    if not colon or not filename.endswith(".py") or not name.isidentifier():
        raise InvalidInput(f'handler = "{handler}" is not "FILE.py:Class"')
    file = (folder / filename).absolute()
    if not file.is_file():
        raise InvalidInput(f'handler = "{handler}": there is no file {file}')
    return f"{file}:{name}"


def _is_handler(node: ast.ClassDef) -> bool:
    functions = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return bool(functions & METHODS) and not node.name.startswith("_")
