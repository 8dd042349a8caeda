"""A decorator that measures a handler's stages."""

import functools
import time
from collections.abc import Callable
from typing import Any


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the time of a stage to the metrics, where the model's configuration asks for it."""

    @functools.wraps(function)
    def measured(self: Any, *arguments: Any, **more: Any) -> Any:
        config = getattr(self, "model_yaml_config", None) or {}
        wanted = isinstance(config.get("handler"), dict) and config["handler"].get("profile")
        context = getattr(self, "context", None)
        if not wanted or context is None:
            return function(self, *arguments, **more)
        started_s = time.perf_counter()
        result = function(self, *arguments, **more)
        taken_ms = round((time.perf_counter() - started_s) * 1000, 2)
        context.metrics.add_time("ts_handler_" + function.__name__, taken_ms)
        return result

    return measured
