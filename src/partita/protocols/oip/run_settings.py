"""How the server traces and logs, as the protocol's settings objects.

They can be read and not changed: what is traced and logged is said when the server starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.core.errors import InvalidRequest

TraceSettings = dict[str, str | list[str]]
LogSettings = dict[str, bool | int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What of the server's settings these objects say."""

    tracing: str | None = None
    """URL that traces are sent to; None = nothing is traced."""
    trace_sampling: float = 1.0
    """Share of the requests that are traced."""
    log_requests: bool = False

    def trace(self) -> TraceSettings:
        """Return the trace settings, which hold for every model."""
        is_traced = self.tracing is not None and self.trace_sampling > 0
        return {
            "trace_level": ["TIMESTAMPS" if is_traced else "OFF"],
            "trace_rate": str(round(1 / self.trace_sampling)) if self.trace_sampling > 0 else "0",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": "",
            "trace_mode": "opentelemetry",
        }

    def log(self) -> LogSettings:
        """Return the log settings. Lines go to standard error, those of requests as level 1."""
        return {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": int(self.log_requests),
            "log_format": "default",
        }


def check_unchanged(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for a setting that is not as wanted; None is what it is by default."""
    for name, value in wanted.items():
        if name not in now:
            raise InvalidRequest(f"there is no setting {name[:80]!r}; there are {', '.join(now)}")
        if value not in (None, now[name], [now[name]]):
            raise InvalidRequest(
                f"{name} is set when the server starts, and cannot be changed over its ports"
            )
