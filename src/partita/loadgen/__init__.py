"""An honest load generator for servers that speak the Open Inference Protocol over HTTP."""

from partita.loadgen.load import run_load
from partita.loadgen.payload import Payload, payload_for
from partita.loadgen.result import LoadResult
from partita.loadgen.spec import Arrivals, LoadSpec
from partita.loadgen.target import Target, Unreachable

__all__ = [
    "Arrivals",
    "LoadResult",
    "LoadSpec",
    "Payload",
    "Target",
    "Unreachable",
    "payload_for",
    "run_load",
]
