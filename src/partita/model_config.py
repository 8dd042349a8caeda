"""What is read from a Triton ``config.pbtxt``: its ``max_batch_size`` and its ``version_policy``."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.versions import LatestVersions, Versions

_TOKEN = re.compile(
    r"""\s+ | \#[^\n]*
    | (?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<word>[\w.+-]+)
    | (?P<sign>[\[\]{}<>:,;])""",
    re.VERBOSE,
)
_OPENING, _CLOSING = "[{<", "]}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonConfig:
    """What such a file says; None where it does not."""

    max_batch_size: int | None = None
    versions: Versions | None = None


def read_config(file: Path) -> TritonConfig:
    """Return what the file says; all other fields are passed over.

    Raises `InvalidInput` for text that is no protobuf text at all, or a value that is none.
    """
    if not file.is_file():
        return TritonConfig()
    fields = dict(_fields(_tokens(file)))
    size, policy = fields.get("max_batch_size"), fields.get("version_policy")
    return TritonConfig(
        max_batch_size=None if size is None else _number(file, "max_batch_size", size),
        versions=None if policy is None else _versions(file, policy),
    )


def _versions(file: Path, tokens: list[str]) -> Versions:
    """Return a version policy: one of ``latest``, ``all`` and ``specific``."""
    choices = list(_fields(_inside(tokens)))
    match choices:
        case [("all", _)]:
            return "all"
        case [("latest", inner)]:
            given = dict(_fields(_inside(inner))).get("num_versions", ["1"])
            return LatestVersions(latest=max(1, _number(file, "num_versions", given)))
        case [("specific", inner)]:
            named = [value for key, value in _fields(_inside(inner)) if key == "versions"]
            numbers = [token for value in named for token in _inside(value) if token != ","]
            return tuple(_number(file, "versions", [number]) for number in numbers)
    raise InvalidInput(f"{file}: version_policy: expected one of latest, all and specific")


def _fields(tokens: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each field of a message with the tokens of its value, brackets included."""
    at = 0
    while at < len(tokens):
        name = tokens[at]
        at += 1
        if name in ",;" or name in _CLOSING:
            continue
        if tokens[at : at + 1] == [":"]:
            at += 1
        elif tokens[at : at + 1] not in ([sign] for sign in _OPENING):
            continue
        end = _end(tokens, at)
        yield name, tokens[at:end]
        at = end


def _end(tokens: list[str], start: int) -> int:
    """Return where the value ends that begins there."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += (tokens[at] in _OPENING) - (tokens[at] in _CLOSING)
        if depth <= 0:
            return at + 1
    return len(tokens)


def _inside(value: list[str]) -> list[str]:
    """Return what is between a value's brackets, or the value itself where it has none."""
    return value[1:-1] if value and value[0] in _OPENING else value


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


def _number(file: Path, field: str, tokens: list[str]) -> int:
    text = "".join(tokens)
    if not text.isdecimal():
        raise InvalidInput(f"{file}: {field}: {text or 'nothing'} is not a whole number")
    return int(text)
