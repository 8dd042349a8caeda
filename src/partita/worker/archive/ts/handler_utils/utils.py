"""Classes by their names, and answers in parts."""

import importlib
from collections.abc import Mapping
from typing import Any


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """Return a class by its dotted name."""
    module, _, name = class_name.rpartition(".")
    if module_prefix is not None:
        module = f"{module_prefix}.{module}" if module else module_prefix
    return getattr(importlib.import_module(module), name)


def send_intermediate_predict_response(
    ret: list[Any], req_id_map: Mapping[int, str], message: str, code: int, context: Any = None
) -> None:
    """Take a part of the answers; parts and the rest are answered together."""
    if context is None:
        raise ValueError("the context is needed to send a part of an answer")
    parts = context.__dict__.setdefault("partial_answers", {})
    for index, value in enumerate(ret):
        parts.setdefault(index, []).append(value)
