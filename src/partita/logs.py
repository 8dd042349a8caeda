"""What the server writes to stderr: lines of text or of JSON, and where asked for one for each request."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from partita.engine.observing import CANCELLED, INCOMING, OK, Trail

LogFormat = Literal["text", "json"]
FIELDS = "fields"
"""Attribute of a record with what a line of JSON says besides its message."""
_CLIENTS_OWN = frozenset({"invalid_request", "payload_too_large", "deadline_exceeded", "queue_full"})
"""Outcomes that are no fault of the server's."""

_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
"""The beginning of a ``traceparent``."""

log = logging.getLogger("partita.requests")


def set_up_logs(form: LogFormat) -> None:
    """Send all log records to stderr in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class TextLines(logging.Formatter):
    """A line for people; a request's fields at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 the base class's name
        """Return the record's one line; a traceback comes below it."""
        record.message = _on_one_line(record.message)
        said = "".join(f" {name}={_plain(value)}" for name, value in _fields(record).items())
        return super().formatMessage(record) + said


def _on_one_line(text: str) -> str:
    """Return a message without what would end its line or move the cursor; much of it is not ours."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else json.dumps(ch)[1:-1] for ch in text)


def _plain(value: Any) -> str:
    """Return a field's value so that it can neither end its line nor look like another field."""
    text = str(value)
    is_plain = text.isprintable() and not any(mark in text for mark in ' "')
    return text if is_plain and text else json.dumps(text)


class JsonLines(logging.Formatter):
    """One JSON object for each record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, FIELDS, {})
    incoming = INCOMING.get()
    if incoming is not None and incoming.request_id and "request_id" not in fields:
        return {"request_id": incoming.request_id, **fields}
    return fields


class RequestLog:
    """Reports each request that has ended as a line."""

    def begin(self, trail: Trail) -> Any:
        """Every request is of interest."""
        return trail

    def report(self, begun: Any, trail: Trail) -> None:  # noqa: ARG002
        """Write the line: a warning where the server could not answer."""
        is_fault = trail.outcome not in (OK, CANCELLED) and trail.outcome not in _CLIENTS_OWN
        log.log(logging.WARNING if is_fault else logging.INFO, "request", extra={FIELDS: line(trail)})


def line(trail: Trail) -> dict[str, Any]:
    """Return what a request's line says. Times are milliseconds."""
    incoming = trail.incoming
    first_s = min((one.dispatched_s for one in trail.executions), default=trail.ended_s)
    last_s = max((one.done_s for one in trail.executions), default=first_s)
    fields = {
        "request_id": trail.request_id,
        "protocol": incoming.protocol,
        "model": trail.model,
        "version": trail.version,
        "items": trail.n_items,
        "outcome": trail.outcome,
        "queue_ms": _ms(first_s - trail.arrived_s),
        "compute_ms": _ms(last_s - first_s),
        "total_ms": _ms(trail.ended_s - trail.arrived_s),
    }
    if trail.error:
        fields["error"] = trail.error
    if trace := _TRACE.match(incoming.traceparent):
        fields["trace_id"] = trace[1]
    return fields


def _ms(time_s: float) -> float:
    return round(time_s * 1000, 3)
