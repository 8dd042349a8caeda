"""Which files a model consists of: its own, and those beside it that it cannot do without."""

import re
from pathlib import Path

from partita.core.formats import CONFIG, needs_factory

_EXTERNAL = re.compile(rb"location\x12(.)", re.DOTALL)
"""Start of ONNX's ``{key: "location", value: NAME}``: field 2 and the length of the name."""


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
