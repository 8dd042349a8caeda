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
    """Answer parts, one to each request of the batch; what the handler returns is the last one.

    Raises `ValueError` without the context, `RuntimeError` when the batch is no longer at hand.
    """
    if context is None:
        raise ValueError("the context is needed to send a part of an answer")
    parts = getattr(context, "partita_parts", None)
    if parts is None:
        raise RuntimeError("there is no batch at hand whose answers could have parts")
    for index, value in enumerate(ret):
        parts.take(index, value)
