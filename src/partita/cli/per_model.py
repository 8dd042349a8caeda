"""Options of a command for several models: ``NAME=VALUE`` is for one of them, ``VALUE`` for all."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

from partita.core.errors import InvalidInput

Named = tuple[str | None, Any]
"""Whom a value is for, None = for all, and the value."""
_NAMED = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


class PerModel(click.ParamType[Named]):
    """A value of some type, with or without the name of the model that it is for.

    Where the value is a file, a file whose own name looks like that is taken as it is.
    """

    def __init__(self, inner: click.ParamType[Any], *, is_file: bool = False) -> None:
        self.name = inner.name
        self._inner = inner
        self._is_file = is_file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Named:
        """Return the name and the value, which the inner type may refuse."""
        found = _NAMED.fullmatch(value)
        if found is None or (self._is_file and Path(value).exists()):
            return None, self._inner.convert(value, param, ctx)
        return found[1], self._inner.convert(found[2], param, ctx)


def value_for(option: str, given: Sequence[Named], name: str, default: Any = None) -> Any:
    """Return what an option says of a model: its own value, else the one for all, else the default.

    Raises `InvalidInput` where it was given twice.
    """
    for whom in (name, None):
        values = [value for named, value in given if named == whom]
        if len(values) > 1:
            who = "all models" if whom is None else whom
            raise InvalidInput(f"{option}: given {len(values)} times for {who}; once is enough")
        if values:
            return values[0]
    return default


def check_names(option: str, given: Sequence[Named], names: Collection[str]) -> None:
    """Raise `InvalidInput` where a value is for a model that there is not."""
    for name, _ in given:
        if name is not None and name not in names:
            raise InvalidInput(f"{option} {name}=…: no --profile is called so; there are {', '.join(names)}")
