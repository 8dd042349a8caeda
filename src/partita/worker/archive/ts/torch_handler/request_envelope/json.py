"""The envelope ``json``: ``{"instances": [...]}`` in, ``{"predictions": [...]}`` out."""

import json
from base64 import b64decode
from typing import Any

from partita.worker.archive.ts.torch_handler.request_envelope.base import BaseEnvelope


class JSONEnvelope(BaseEnvelope):
    """Joins the instances of all requests of a batch, and cuts the answers up again."""

    def __init__(self, handle_fn: Any) -> None:
        super().__init__(handle_fn)
        self._lengths: list[int] = []

    def parse_input(self, data: Any) -> Any:
        """Return all instances, one after another; ``{"b64": text}`` as the bytes that it stands for."""
        each = [instances_of(row) for row in data]
        self._lengths = [len(one) for one in each]
        return [_decoded(instance) for one in each for instance in one]

    def format_output(self, data: Any) -> Any:
        """Return each request's answers."""
        return [json.dumps({"predictions": part}) for part in parts_of(data, self._lengths)]


def instances_of(row: Any) -> list[Any]:
    """Return the instances of one request's JSON. Raises `ValueError`."""
    document = row.get("data") or row.get("body") or row
    if isinstance(document, bytes | bytearray | str):
        document = json.loads(document)
    instances = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(instances, list):
        raise ValueError('expected {"instances": [...]}')
    return instances


def parts_of(values: Any, lengths: list[int]) -> list[list[Any]]:
    """Return values cut into parts of these lengths. Raises `ValueError` where they are not as many."""
    values = list(values)
    if len(values) != sum(lengths):
        raise ValueError(f"the handler answered {len(values)} values to {sum(lengths)} instances")
    parts, at = [], 0
    for length in lengths:
        parts.append(values[at : at + length])
        at += length
    return parts


def _decoded(instance: Any) -> Any:
    if not isinstance(instance, dict):
        return instance
    if list(instance) == ["b64"]:
        return b64decode(instance["b64"])
    return {
        key: b64decode(value["b64"]) if isinstance(value, dict) and list(value) == ["b64"] else value
        for key, value in instance.items()
    }
