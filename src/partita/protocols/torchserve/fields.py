"""A request's body as fields: raw, url-encoded or multipart."""

from dataclasses import dataclass
from urllib.parse import parse_qsl

from partita.core.errors import InvalidRequest

MAX_FIELDS = 128
BODY = "body"
"""The one field of a raw body."""


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a body, with the content type that is said for it."""

    name: str
    content_type: str
    value: bytes


def fields_of(body: bytes, content_type: str) -> dict[str, bytes]:
    """Return each field's bytes by its name. Raises `InvalidRequest`."""
    return {part.name: part.value for part in parts_of(body, content_type)}


def parts_of(body: bytes, content_type: str) -> list[Part]:
    """Return the fields of a body; one that is raw is one field. Raises `InvalidRequest`."""
    kind, _, rest = content_type.partition(";")
    match kind.strip().lower():
        case "application/x-www-form-urlencoded":
            return [Part(name, "", value) for name, value in _url_encoded(body).items()]
        case "multipart/form-data":
            return _multipart(body, _parameter(rest, "boundary"))
        case _:
            return [Part(BODY, content_type, body)]


def _url_encoded(body: bytes) -> dict[str, bytes]:
    """Return the form's fields; what is no form is a raw body, which curl calls so where nobody says more."""
    if b"=" not in body or not body.isascii():
        return {BODY: body}
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="surrogateescape"
        )
    except ValueError as error:
        raise InvalidRequest(f"the body is not url-encoded: {error}") from None
    return {name: value.encode("utf-8", "surrogateescape") for name, value in pairs}


def _multipart(body: bytes, boundary: str) -> list[Part]:
    if not 1 <= len(boundary) <= 200:
        raise InvalidRequest("multipart/form-data needs a boundary")
    mark = b"--" + boundary.encode("latin-1")
    parts = (b"\r\n" + body).split(b"\r\n" + mark)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise InvalidRequest("the multipart body does not end with its boundary")
    if len(parts) - 2 > MAX_FIELDS:
        raise InvalidRequest(f"the multipart body has more than {MAX_FIELDS} parts")
    found: list[Part] = []
    for part in parts[1:-1]:
        head, end, content = part.lstrip(b" \t").removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name, kind = _described(head)
        if not end or name is None:
            raise InvalidRequest("a part of the multipart body has no Content-Disposition with a name")
        found.append(Part(name, kind, content))
    return found


def _described(head: bytes) -> tuple[str | None, str]:
    """Return a part's name and content type."""
    name, kind = None, ""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        header, _, value = line.partition(":")
        match header.strip().lower():
            case "content-disposition":
                name = _parameter(value, "name") or None
            case "content-type":
                kind = value.strip()
    return name, kind


def _parameter(text: str, wanted: str) -> str:
    """Return a header's parameter, quotes removed; empty where there is none."""
    for part in text.split(";"):
        name, _, value = part.strip().partition("=")
        if name.lower() == wanted:
            return value.strip().strip('"')
    return ""
