"""The one thing that is read from a Triton ``config.pbtxt``: its ``max_batch_size``."""

import re
from pathlib import Path

from partita.core.errors import InvalidInput

_TOKEN = re.compile(
    r"""\s+ | \#[^\n]*
    | (?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<word>[\w.+-]+)
    | (?P<sign>[\[\]{}<>:,;])""",
    re.VERBOSE,
)


def read_max_batch_size(file: Path) -> int | None:
    """Return the file's own ``max_batch_size``; None where the file, or the field, is missing.

    All other fields are passed over. Raises `InvalidInput` for text that is no protobuf text at all.
    """
    if not file.is_file():
        return None
    tokens = _tokens(file)
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token in "[{<") - (token in "]}>")
        if depth == 0 and token == "max_batch_size" and tokens[index + 1 : index + 2] == [":"]:
            return _number(file, "".join(tokens[index + 2 : index + 3]))
    return None


def _tokens(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8", errors="replace")
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            line = text.count("\n", 0, position) + 1
            raise InvalidInput(
                f"{file}, line {line}: not protobuf text at {text[position : position + 20]!r}"
            )
        if match.lastgroup:
            tokens.append(match[match.lastgroup])
        position = match.end()
    return tokens


def _number(file: Path, text: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"{file}: max_batch_size: {text or 'nothing'} is not a whole number")
    return int(text)
