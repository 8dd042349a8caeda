"""What an envelope is: opens requests before the handler sees them, and wraps its answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class BaseEnvelope(ABC):
    """Stands before a handler's `handle`."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self._inputs: Any = []
        self._outputs: Any = []
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        """Return the wrapped answers to a batch."""
        self.context = context
        if data:
            self._inputs = self.parse_input(data)
            self._outputs = self._handle_fn(self._inputs, context)
            return self.format_output(self._outputs)
        return self._handle_fn(data, context)

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Return what is in the envelopes of a batch."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Return answers in envelopes."""
