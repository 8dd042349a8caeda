"""Tables that a user wrote, checked against a struct; messages say where, what, and what would be right."""

import re
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from partita.core.errors import InvalidInput

T = TypeVar("T", bound=msgspec.Struct)

_WHERE = re.compile(r"^(?P<what>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's tables; raises `InvalidInput` for a missing file or a mistake in it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from error


def read_table(
    kind: type[T], table: Any, *, where: str, section: tuple[str, ...] = (), strict: bool = True
) -> T:
    """Return the struct that a table spells; `where` begins every message, then comes the `section`.

    Raises `InvalidInput` naming the nearest known key for an unknown one, or the type that would be right.
    `strict=False` takes numbers and truth values from text, as environment variables need.
    """
    for path, key, known in _unknown_keys(kind, table, section):
        raise InvalidInput(f"{where}{_section(path)}unknown key {key!r}{_nearest(key, known)}")
    try:
        return msgspec.convert(table, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where}{_explain(str(error), kind, section)}") from error


def _unknown_keys(
    kind: Any, value: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, list[str]]]:
    """Yield (table, key, known keys of that table) for every key that no struct has, outermost first."""
    struct = _struct(kind)
    if isinstance(value, dict) and struct is not None:
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        yield from ((path, key, list(fields)) for key in value if key not in fields)
        for key, inner in value.items():
            yield from _unknown_keys(fields.get(key), inner, (*path, key))
    elif isinstance(value, dict) and get_origin(kind) is dict:
        for key, inner in value.items():
            yield from _unknown_keys(get_args(kind)[1], inner, (*path, key))
    elif isinstance(value, list) and get_origin(kind) is tuple:
        for index, inner in enumerate(value):
            yield from _unknown_keys(get_args(kind)[0], inner, (*path, str(index)))


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    if get_origin(kind) in (Union, UnionType):
        return next(filter(None, map(_struct, get_args(kind))), None)
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _nearest(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def _section(path: tuple[str, ...]) -> str:
    return f"[{'.'.join(path)}] " if path else ""


def _explain(message: str, kind: type[msgspec.Struct], section: tuple[str, ...]) -> str:
    """Turn msgspec's message into "[section] key: what is wrong (e.g. what would be right)"."""
    found = _WHERE.match(message)
    what = (found["what"] if found else message).replace("`", "").replace("null", "nothing")
    what = (what[:1].lower() + what[1:]).replace("object", "table")
    path = found["path"].removeprefix("$") if found else ""
    parts = [part for part in re.split(r"[.\[\]]+", path) if part]  # a dict's key comes as [...]
    if not parts:
        return f"{_section(section)}{what}"
    return f"{_section((*section, *parts[:-1]))}{parts[-1]}: {what}{_example(kind, parts)}"


def _choices(kind: Any) -> tuple[str, ...]:
    """Return the words that a Literal allows, in a union or not; empty for other types."""
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    return next(filter(None, map(_choices, get_args(kind))), ())


def _example(kind: Any, parts: list[str]) -> str:
    """Return the default of the key as an example of a right value, where it has one that shows something."""
    for depth, part in enumerate(parts):
        struct = _struct(kind)
        if struct is None:
            arguments = [a for a in get_args(kind) if a is not Ellipsis]
            kind = arguments[-1] if get_origin(kind) in (dict, tuple) else None
            continue
        field = next((f for f in msgspec.structs.fields(struct) if f.encode_name == part), None)
        if field is None:
            return ""
        choices = _choices(field.type)
        if depth == len(parts) - 1 and choices:
            return f" (one of {', '.join(choices)})"
        if depth == len(parts) - 1 and isinstance(field.default, int | float | str):
            shown = str(field.default).lower() if isinstance(field.default, bool) else repr(field.default)
            return f" (e.g. {part} = {shown})"
        kind = field.type.__origin__ if get_origin(field.type) is Annotated else field.type
    return ""
