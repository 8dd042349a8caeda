"""From `Start` to a model that is ready to run: runtime, handler, signature and warm-up."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from partita.core.errors import InvalidInput
from partita.core.formats import ON_GPUS
from partita.core.tensors import Signature, TensorSpec
from partita.system.memory import resident_bytes
from partita.wire.messages import Held, Measured, Start
from partita.worker.arena import slot_bytes
from partita.worker.declared import declared_specs
from partita.worker.gpus.interface import GpuDevice
from partita.worker.gpus.opening import open_gpu
from partita.worker.gpus.staging import StagedRuntime, Staging
from partita.worker.handlers import Stages, load_stages
from partita.worker.network import Network
from partita.worker.pipeline import Run, make_pipeline
from partita.worker.runtimes.interface import LoadRequest, Runtime, SendPart
from partita.worker.runtimes.registry import runtime_loader
from partita.worker.user_code import describe, load_class
from partita.worker.warmup import Observed, observed_outputs, warm_up


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A warm model, and what was learnt about it."""

    run: Run
    signature: Signature
    slot_bytes: int
    """Room for the outputs of the largest batch, as far as known."""
    version: str
    threads_seen: int | None
    user_folder: Path | None
    """Where the user's own code lies, for reasons that name a line of it."""
    device_bytes: int | None = None
    memory: tuple[Held, ...] = ()
    warnings: tuple[str, ...] = ()
    take_metrics: Callable[[], tuple[Measured, ...]] | None = None
    """Returns what a handler has measured since the last time; None = it measures nothing."""
    offer_parts: Callable[[SendPart], None] | None = None
    """Tells the runtime where parts of answers may go while it executes; None = it has none."""


def load_model(start: Start, held: ExitStack) -> LoadedModel:
    """Load and warm up; raises `InvalidInput`, `MissingExtra`, `LoadFailed` or `MemoryError`.

    What is to be given back once the model is gone is put into `held`.
    """
    gpu = None if start.gpu is None else open_gpu(start.gpu)
    free = 0 if gpu is None else gpu.memory().free
    request = LoadRequest(
        path=start.path,
        model=start.model,
        threads=start.threads,
        owns_cores=start.owns_cores,
        max_batch=start.max_batch,
        options=start.options,
        inputs=start.inputs,
        device="cpu" if gpu is None else gpu.name,
        gpu=gpu,
    )
    runtime = runtime_loader(start.runtime)(request) if gpu is None else _on_gpu(start, request, gpu, held)

    def held_bytes() -> int:
        """Return what the model holds: its process, or what the GPU has less than before."""
        return resident_bytes(os.getpid()) or 0 if gpu is None else max(0, free - gpu.memory().free)

    network = Network(runtime.infer, runtime.signature)
    stages = _stages(start, request, runtime, network)
    signature = _external_signature(start, runtime.signature, stages)
    run = make_pipeline(network, stages, batched=signature.batched)
    observed = warm_up(
        run,
        signature,
        max_batch=start.max_batch,
        dimensions=start.dimensions,
        examples=stages.examples,
        memory_at=start.memory_at,
        held_bytes=held_bytes,
        is_warm_at_once=getattr(runtime, "is_warm_at_once", False),
    )
    named = Path(start.handler or start.path).name
    if not signature.outputs:
        signature = replace(signature, outputs=observed_outputs(observed, signature, named=named))
    return LoadedModel(
        run=run,
        signature=signature,
        slot_bytes=_slot_bytes(signature, observed, start.max_batch),
        version=runtime.version,
        threads_seen=runtime.threads_seen,
        user_folder=stages.folder,
        device_bytes=None if gpu is None else held_bytes(),
        memory=_memory(start, observed, batched=signature.batched),
        warnings=_warnings(observed, stages, runtime, start),
        take_metrics=getattr(runtime, "take_metrics", None),
        offer_parts=getattr(runtime, "offer_parts", None),
    )


def _on_gpu(start: Start, request: LoadRequest, gpu: GpuDevice, held: ExitStack) -> Runtime:
    """Load onto a GPU; its inputs go through page-locked memory from then on."""
    if start.runtime not in ON_GPUS:
        raise InvalidInput(
            f"runtime {start.runtime} runs on cores, and {start.model} is to be on {gpu.name}; on GPUs run "
            f"{', '.join(ON_GPUS)}"
        )
    size = request.file.stat().st_size if request.file.is_file() else 0
    held.callback(gpu.charge(size))
    staging = Staging(gpu)
    held.callback(staging.close)
    return StagedRuntime(runtime_loader(start.runtime)(request), staging)


def _stages(start: Start, request: LoadRequest, runtime: Runtime, network: Network) -> Stages:
    """Return the handler's stages; a class that is the model itself brings its own."""
    own = getattr(runtime, "stages", None)
    if start.handler is None:
        return replace(own, infer=None) if isinstance(own, Stages) else Stages()
    if isinstance(own, Stages) and (own.preprocess or own.postprocess):
        raise InvalidInput(f"{start.path} has a preprocess or postprocess, and there is a handler as well")
    batched = runtime.signature.batched

    def run_network(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = len(next(iter(batch.values()))) if batched else 1
        return network.run(batch, rows, rows)

    return load_stages(load_class(start.handler), request, network=run_network)


def _external_signature(start: Start, network: Signature, stages: Stages) -> Signature:
    """Return what clients see: a handler's own inputs and outputs where it has such, else the network's."""
    inputs = start.inputs or _declared(stages, "inputs", network) or network.inputs
    if stages.preprocess is None and stages.infer is None:
        _check_inputs(start.model, inputs, network.inputs)
    changed = stages.infer is not None or stages.postprocess is not None
    outputs = _declared(stages, "outputs", network) or (() if changed else network.outputs)
    return replace(network, inputs=inputs, outputs=outputs)


def _declared(stages: Stages, attribute: str, network: Signature) -> tuple[TensorSpec, ...] | None:
    return declared_specs(stages.owner, attribute, batched=network.batched) if stages.owner else None


def _check_inputs(model: str, given: tuple[TensorSpec, ...], network: tuple[TensorSpec, ...]) -> None:
    wanted = {spec.name: spec.datatype for spec in network}
    if {spec.name: spec.datatype for spec in given} != wanted:
        has = ", ".join(f"{name} ({datatype})" for name, datatype in wanted.items())
        told = ", ".join(f"{spec.name} ({spec.datatype})" for spec in given)
        raise InvalidInput(f"model {model}: the inputs given are {told}, the network has {has}")


def _slot_bytes(signature: Signature, observed: Observed, max_batch: int) -> int:
    rows = max(observed.outputs, default=0)
    if rows:
        seen = slot_bytes([np.asarray(array) for array in observed.outputs[rows].values()])
        return seen * -(-max_batch // rows) if signature.batched else seen
    if all(spec.is_static for spec in signature.outputs):
        return sum(spec.item_bytes * max_batch + 64 for spec in signature.outputs)
    return 0


def _memory(start: Start, observed: Observed, *, batched: bool) -> tuple[Held, ...]:
    """Return what was held at each size asked for; a model that takes single items has but one."""
    held = {rows: observed.held.get(rows if batched else 1) for rows in start.memory_at}
    return tuple(Held(rows, nbytes) for rows, nbytes in sorted(held.items()) if nbytes is not None)


def _warnings(observed: Observed, stages: Stages, runtime: Runtime, start: Start) -> tuple[str, ...]:
    warnings = list(getattr(runtime, "remarks", ()))
    if observed.error is not None:
        reason = describe(observed.error, stages.folder)
        warnings.append(f"warm-up with generated inputs failed: {reason}")
    if runtime.threads_seen not in {None, start.threads}:
        warnings.append(f"the runtime computes with {runtime.threads_seen} threads, not {start.threads}")
    return tuple(warnings)
