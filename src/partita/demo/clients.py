"""Asks a served model real images over HTTP: each once for the accuracy, then for a while for the speed."""

import http.client
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import PartitaError
from partita.demo.digits import INPUT, OUTPUT, Digits
from partita.demo.report import Load
from partita.loadgen import LoadSpec, Payload, Target, run_load
from partita.loadgen.payload import infer_request

CLIENTS = 32
_ASKERS = 8
_WARMUP_S = 0.3


class WrongAnswer(PartitaError):
    """The server did not answer an image with ten probabilities."""

    code = "wrong_answer"


def ask_each(target: Target, model: str, data: Digits) -> NDArray[np.int64]:
    """Return the digit (n,) that the model sees in each image, asked one by one by several clients at once.

    Raises `WrongAnswer` if a request fails.
    """
    connections = threading.local()
    opened: list[http.client.HTTPConnection] = []

    def connection() -> http.client.HTTPConnection:
        if not hasattr(connections, "own"):
            connections.own = http.client.HTTPConnection(target.address.host, target.address.port, timeout=30)
            opened.append(connections.own)
        own: http.client.HTTPConnection = connections.own
        return own

    def ask(image: NDArray[np.float32]) -> int:
        return _ask(connection(), f"{target.prefix}/v2/models/{model}/infer", image)

    try:
        with ThreadPoolExecutor(_ASKERS, thread_name_prefix="asker") as askers:
            return np.fromiter(askers.map(ask, data.images), np.int64, len(data))
    finally:
        for one in opened:
            one.close()


def _ask(connection: http.client.HTTPConnection, path: str, image: NDArray[np.float32]) -> int:
    tensor = {"name": INPUT, "shape": [1, image.size], "datatype": "FP32", "data": image.tolist()}
    connection.request("POST", path, json.dumps({"inputs": [tensor]}))
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise WrongAnswer(f"{path} answers {response.status}: {body[:200].decode(errors='replace')}")
    (output,) = json.loads(body)["outputs"]
    if output["name"] != OUTPUT or output["shape"] != [1, 10]:
        raise WrongAnswer(f"{path} answers {output['name']} of shape {output['shape']}")
    return int(np.argmax(output["data"]))


def load(target: Target, model: str, data: Digits, *, seconds: float) -> Load:
    """Keep `CLIENTS` requests of one image each in flight for this long, in the binary tensor extension."""
    spec = LoadSpec(concurrency=CLIENTS, duration_s=seconds, warmup_s=min(_WARMUP_S, seconds))
    payload = Payload(requests=tuple(_requests(target, model, data.images)), items=1)
    result = run_load(target, payload, spec)
    return Load(
        clients=CLIENTS,
        answered=result.requests,
        failed=sum(result.errors.values()),
        items_per_s=result.items_per_s,
        p50_ms=result.p50_ms or 0.0,
        p99_ms=result.p99_ms or 0.0,
    )


def _requests(target: Target, model: str, images: NDArray[np.float32]) -> Sequence[bytes]:
    described: dict[str, Any] = {
        "inputs": [
            {
                "name": INPUT,
                "shape": [1, images.shape[1]],
                "datatype": "FP32",
                "parameters": {"binary_data_size": images[0].nbytes},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    return [infer_request(target, model, described, [image.tobytes()]) for image in images]
