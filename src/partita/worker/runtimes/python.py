"""A user's class as the model itself: ``FILE.py:Class`` with ``infer(self, batch)``."""

import platform
from typing import Any

from partita.core.errors import InvalidInput
from partita.core.tensors import Signature
from partita.worker.declared import declared_specs
from partita.worker.handlers import Stages, load_stages
from partita.worker.runtimes.interface import Batch, LoadRequest
from partita.worker.user_code import load_class


def load(request: LoadRequest) -> "PythonRuntime":
    """Make the class and call its ``load``; raises `InvalidInput` or `LoadFailed`."""
    return PythonRuntime(load_stages(load_class(request.path), request, network=None), request)


class PythonRuntime:
    """An object with ``infer``; its ``preprocess`` and ``postprocess`` are run as a handler's are."""

    version = platform.python_version()

    def __init__(self, stages: Stages, request: LoadRequest) -> None:
        if stages.infer is None:
            raise InvalidInput(f"{request.path}: the class has no method infer(self, batch)")
        self.stages = stages
        self.signature = _signature(stages.owner, request)
        self._infer = stages.infer

    @property
    def threads_seen(self) -> int | None:
        """The largest thread count of the numeric libraries loaded, where threadpoolctl can tell."""
        try:
            from threadpoolctl import threadpool_info
        except ModuleNotFoundError:
            return None
        return max((int(pool["num_threads"]) for pool in threadpool_info()), default=None)

    def infer(self, batch: Batch) -> Batch:
        """Call the user's ``infer``."""
        return self._infer(batch)


def _signature(owner: Any, request: LoadRequest) -> Signature:
    batched = bool(getattr(owner, "batched", True))
    inputs = request.inputs or declared_specs(owner, "inputs", batched=batched)
    if inputs is None:
        raise InvalidInput(
            f"{request.path} does not say its inputs: give the class an attribute "
            f'inputs = {{"x": {{"shape": [-1, 64], "datatype": "FP32"}}}}, or [model.{request.model}] inputs'
        )
    outputs = declared_specs(owner, "outputs", batched=batched) or ()
    return Signature(inputs=inputs, outputs=outputs, batched=batched)
