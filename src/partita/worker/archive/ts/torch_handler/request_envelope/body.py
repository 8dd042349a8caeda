"""The envelope ``body``: the handler gets the bodies themselves."""

from typing import Any

from partita.worker.archive.ts.torch_handler.request_envelope.base import BaseEnvelope


class BodyEnvelope(BaseEnvelope):
    """Takes the field ``data``, else ``body``, out of each request."""

    def parse_input(self, data: Any) -> Any:
        """Return the bodies."""
        return [row.get("data") or row.get("body") for row in data]

    def format_output(self, data: Any) -> Any:
        """Return the answers as they are."""
        return data
