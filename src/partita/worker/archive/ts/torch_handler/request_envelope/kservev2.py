"""The envelope ``kservev2``: the Open Inference Protocol's JSON, an input in and outputs out."""

import json
from typing import Any

import numpy as np

from partita.worker.archive.ts.torch_handler.request_envelope.base import BaseEnvelope

_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
"""Of numpy's types; anything else is BYTES."""


class KServeV2Envelope(BaseEnvelope):
    """The handler gets each request's first input, a dict of name, shape, datatype and data.

    What it returns to a request alone are its outputs; to several at once it returns one for each.
    """

    def __init__(self, handle_fn: Any) -> None:
        super().__init__(handle_fn)
        self._ids: list[Any] = []

    def parse_input(self, data: Any) -> Any:
        """Return the first input of each request. Raises `ValueError`."""
        documents = [_document(row) for row in data]
        self._ids = [document.get("id") for document in documents]
        return [document["inputs"][0] for document in documents]

    def format_output(self, data: Any) -> Any:
        """Return each request's answer. Raises `ValueError` where there are not as many."""
        values = list(data)
        count = len(self._ids)
        if count > 1 and len(values) != count:
            raise ValueError(f"the handler answered {len(values)} values to {count} requests")
        own = [values] if count == 1 else [[value] for value in values]
        return [self._answer(index, outputs) for index, outputs in enumerate(own)]

    def _answer(self, index: int, outputs: list[Any]) -> dict[str, Any]:
        model = self.context.manifest.get("model", {})
        is_explain = self.context.get_request_header(index, "explain") == "True"
        return {
            "id": self._ids[index] or self.context.get_request_id(index),
            "model_name": model.get("modelName"),
            "model_version": model.get("modelVersion"),
            "outputs": [_tensor("explain" if is_explain else "predict", value) for value in outputs],
        }


def _document(row: Any) -> dict[str, Any]:
    document = row.get("data") or row.get("body")
    if isinstance(document, bytes | bytearray | str):
        document = json.loads(document)
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if not isinstance(inputs, list) or not inputs:
        raise ValueError('expected {"inputs": [{"name", "shape", "datatype", "data"}]}')
    found: dict[str, Any] = document
    return found


def _tensor(name: str, value: Any) -> dict[str, Any]:
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": _DATATYPES.get(array.dtype.name, "BYTES"),
        "data": array.ravel().tolist(),
    }
