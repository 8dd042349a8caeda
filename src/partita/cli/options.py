"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from partita.core.errors import InvalidInput

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout; all else goes to stderr."
)
cores_option = click.option(
    "--cores",
    metavar="LIST|N",
    help="Which CPUs (0-3,8) or how many (4). [default: all that this process may use at once]",
)
config_option = click.option(
    "--config", type=FILE, metavar="FILE", help="Settings, a partita.toml; see docs/configuration.md."
)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Read ``NAME:4,5`` options: item shapes by input name; raises `InvalidInput`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shape = ()
        if not colon or not name or not shape or min(shape) < 1:
            raise InvalidInput(f"--shape {text}: write NAME:4,5, the sizes of one item of the input NAME")
        shapes[name] = shape
    return shapes


def parse_dimensions(texts: tuple[str, ...]) -> dict[str, int]:
    """Read ``NAME=SIZE`` options: sizes of a model's axes of any size; raises `InvalidInput`."""
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not (size.isascii() and size.isdecimal()) or int(size) < 1:
            raise InvalidInput(f"--dim {text}: write NAME=SIZE, such as sequence=128")
        sizes[name] = int(size)
    return sizes


def parse_sockets(text: str) -> tuple[int, ...]:
    """Read the cores of each socket, ``8,8``; raises `InvalidInput`."""
    try:
        sockets = tuple(int(field) for field in text.split(","))
    except ValueError:
        sockets = ()
    if not sockets or min(sockets) < 1:
        raise InvalidInput(f"--sockets {text}: write the cores of each socket, such as 8,8")
    return sockets
