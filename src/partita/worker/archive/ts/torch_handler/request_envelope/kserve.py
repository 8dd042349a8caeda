"""The envelope ``kserve``: KServe's V1 protocol, instances in and predictions or explanations out."""

from typing import Any

from partita.worker.archive.ts.torch_handler.request_envelope.base import BaseEnvelope
from partita.worker.archive.ts.torch_handler.request_envelope.json import instances_of, parts_of


class KServeEnvelope(BaseEnvelope):
    """As the envelope ``json``, but what the instances hold is left as it is."""

    def __init__(self, handle_fn: Any) -> None:
        super().__init__(handle_fn)
        self._lengths: list[int] = []

    def parse_input(self, data: Any) -> Any:
        """Return all instances, one after another."""
        each = [instances_of(row) for row in data]
        self._lengths = [len(one) for one in each]
        return [instance for one in each for instance in one]

    def format_output(self, data: Any) -> Any:
        """Return each request's answers."""
        is_explain = self.context.get_request_header(0, "explain") == "True"
        name = "explanations" if is_explain else "predictions"
        if len(self._lengths) == 1:
            return [{name: data}]
        return [{name: part} for part in parts_of(data, self._lengths)]
