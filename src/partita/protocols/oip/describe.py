"""A service as the protocol's documents: metadata, configuration, statistics."""

from collections.abc import Sequence
from typing import Any

from partita.core.plan import Plan
from partita.core.tensors import DYNAMIC, TensorSpec
from partita.engine.service import Service, ServiceState
from partita.protocols.repository import IndexEntry

ENSEMBLE = "ensemble"
"""Platform of what has several members."""
_CONFIG_TYPES = {"BYTES": "TYPE_STRING"}


def metadata(service: Service, versions: Sequence[str]) -> dict[str, Any]:
    """Return the model metadata response, which names all versions of the model that are served.

    Raises `ModelUnavailable` before the model is loaded.
    """
    signature = service.signature
    return {
        "name": service.name,
        "versions": list(versions),
        "platform": _platform(service),
        "inputs": [_tensor(spec, signature.batched) for spec in signature.inputs],
        "outputs": [_tensor(spec, signature.batched) for spec in signature.outputs],
    }


def _platform(service: Service) -> str:
    runtime = service.member.launch.runtime
    return "onnxruntime_onnx" if runtime == "onnxruntime" else runtime


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    shape = [DYNAMIC, *spec.shape] if batched else list(spec.shape)
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": shape}


def configuration(service: Service, versions: Sequence[str]) -> dict[str, Any]:
    """Return the model configuration in Triton's shape, as far as it has a meaning here."""
    signature = service.signature
    plan = service.plan
    assert plan is not None
    rules = service.settings.rules
    return {
        "name": service.name,
        "platform": _platform(service),
        "backend": service.member.launch.runtime,
        "version_policy": _version_policy(versions),
        "max_batch_size": rules.max_queue_items if signature.batched else 0,
        "input": [_config_tensor(spec) for spec in signature.inputs],
        "output": [_config_tensor(spec) for spec in signature.outputs],
        "instance_group": [
            {
                "name": f"{service.name}_{index}",
                "kind": "KIND_CPU",
                "count": count,
                "threads": spec.threads,
                "batch": spec.batch,
                "micro_batch": spec.micro_batch,
            }
            for index, (spec, count) in enumerate(plan.groups())
        ],
        **_scheduling(service, plan),
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }


def _version_policy(versions: Sequence[str]) -> dict[str, Any]:
    """Return what is served as a policy; only numbers are versions for Triton."""
    if len(versions) <= 1 or not all(version.isdecimal() for version in versions):
        return {"latest": {"num_versions": max(1, len(versions))}}
    return {"specific": {"versions": [int(version) for version in versions]}}


def _scheduling(service: Service, plan: Plan) -> dict[str, Any]:
    """Return how requests are scheduled, of which Triton has one kind for each model.

    An ensemble names no steps: clients such as perf_analyzer would look up each member as a model, and they
    are not served by names of their own.
    """
    if _platform(service) == ENSEMBLE:
        return {"ensemble_scheduling": {"step": []}}
    return {
        "dynamic_batching": {
            "preferred_batch_size": sorted({i.micro_batch for i in plan.instances}),
            "max_queue_delay_microseconds": int(service.settings.rules.batch_timeout_s * 1e6),
        }
    }


def _config_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _CONFIG_TYPES.get(spec.datatype.value, f"TYPE_{spec.datatype.value}"),
        "dims": list(spec.shape),
    }


def statistics(service: Service) -> dict[str, Any]:
    """Return one entry of ``model_stats``, every key present; the counts since the model was started."""
    counts = service.statistics
    infer = counts.infer_ns
    return {
        "name": service.name,
        "version": service.version,
        "last_inference": service.last_inference_ms(),
        "inference_count": counts.answered_items,
        "execution_count": counts.executions,
        "inference_stats": {
            "success": _duration(counts.answered, int(counts.latencies.sum_s * 1e9)),
            "fail": _duration(counts.failures, counts.fail_ns),
            "queue": _duration(counts.answered, counts.queue_ns),
            "compute_input": _duration(counts.answered, counts.overhead_ns),
            "compute_infer": _duration(counts.answered, infer),
            "compute_output": _duration(counts.answered, 0),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(batch.executions, batch.overhead_ns),
                "compute_infer": _duration(batch.executions, batch.infer_ns),
                "compute_output": _duration(batch.executions, 0),
            }
            for size, batch in sorted(counts.by_batch.items())
        ],
        "memory_usage": [
            {
                "type": "CPU" if instance.ready.device_bytes is None else "GPU",
                "id": instance.number,
                "byte_size": instance.resident_bytes
                if instance.ready.device_bytes is None
                else instance.ready.device_bytes,
            }
            for instance in service.member.instances.values()
            if instance.ready is not None
        ],
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def index_state(service: Service) -> IndexEntry:
    """Return one entry of the repository index."""
    states = {
        ServiceState.READY: "READY",
        ServiceState.LOADING: "LOADING",
        ServiceState.DRAINING: "UNLOADING",
    }
    return IndexEntry(
        name=service.name,
        version=service.version,
        state=states.get(service.state, "UNAVAILABLE"),
        reason=service.failure or "",
    )
