"""Which files a model consists of: its own, and those beside it that it cannot do without."""

import mmap
import re
from pathlib import Path

from partita.core.formats import CONFIG, needs_factory

_EXTERNAL = re.compile(rb"location\x12(.)", re.DOTALL)
"""Start of ONNX's ``{key: "location", value: NAME}``: field 2 and the length of the name."""
_ANY_EXTERNAL = re.compile(rb"\x0a\x08location(?:\x12([\0-\x7f]))?", re.DOTALL)
"""The same, and what could be one in an order or of a length that nobody writes."""


def files_beside(path: Path) -> list[Path]:
    """Return the files that belong to a model's own, as far as they are there.

    These are the weights that an .onnx file names, the .bin beside an .xml, and the configuration of the
    network beside weights.
    """
    if path.suffix == ".xml":
        return [file] if (file := path.with_suffix(".bin")).is_file() else []
    if needs_factory(path):
        return [file] if (file := path.with_name(CONFIG)).is_file() else []
    return _external_data(path) if path.suffix == ".onnx" else []


def _external_data(path: Path) -> list[Path]:
    names: set[str] = set()
    content = path.read_bytes()
    for match in _EXTERNAL.finditer(content):
        length = match[1][0]
        if length < 0x80:
            names.add(content[match.end() : match.end() + length].decode("utf-8", errors="replace"))
    inside = [path.parent / name for name in names if name and ".." not in name and not name.startswith("/")]
    return sorted(file for file in inside if file.is_file())


def external_data(path: Path) -> list[Path] | None:
    """Return the files of weights that an .onnx names; None unless it is sure which. Raises `OSError`."""
    names: set[bytes] = set()
    if path.stat().st_size == 0:  # which cannot be mapped
        return None
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in _ANY_EXTERNAL.finditer(content):
            if match[1] is None:
                return None
            names.add(content[match.end() : match.end() + match[1][0]])
    try:
        found = [path.parent / name.decode() for name in sorted(names)]
        return found if all(file.is_file() for file in found) else None
    except ValueError:
        return None
