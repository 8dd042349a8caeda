"""A served model as TorchServe describes it."""

from datetime import UTC, datetime
from typing import Any

from partita.engine.instance import Instance
from partita.engine.service import Service
from partita.protocols.repository import LoadRequest
from partita.system.process_times import started_at_s

ALIKE = {
    "maxRetryTimeoutInSec": 300,
    "parallelType": "",
    "parallelLevel": 0,
    "deviceType": "cpu",
    "continuousBatching": False,
    "useJobTicket": False,
    "useVenv": False,
    "stateful": False,
    "sequenceMaxIdleMSec": 0,
    "sequenceTimeoutMSec": 0,
    "maxNumSequence": 0,
    "maxSequenceJobQueueSize": 0,
}
"""Keys that clients may look for, of what is the same for every model here."""


def url_of(service: Service) -> str:
    """Return the archive that a model came from, its name where it is none."""
    return str(service.member.launch.options.get("archive", service.name))


def describe(service: Service, limits: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return one entry of a model's description; `limits` are the least and most workers."""
    instances = list(service.member.instances.values())
    least, most = limits or (len(instances), len(instances))
    rules = service.settings.rules
    queued = service.member.dispatcher.queue.items
    launch = service.member.launch
    return {
        "modelName": service.name,
        "modelVersion": service.version,
        "modelUrl": url_of(service),
        "engine": launch.runtime,
        "runtime": "python",
        "minWorkers": least,
        "maxWorkers": most,
        "batchSize": max((instance.spec.batch for instance in instances), default=1),
        "maxBatchDelay": int(rules.batch_timeout_s * 1000),
        "responseTimeout": int(rules.execution_limit_s),
        "startupTimeout": int(launch.load_limit_s),
        "clientTimeoutInMills": int((service.settings.deadline_s or 0) * 1000),
        **ALIKE,
        "loadedAtStartup": True,
        "workers": [_worker(instance) for instance in instances],
        "jobQueueStatus": {
            "remainingCapacity": max(0, rules.max_queue_items - queued),
            "pendingRequests": queued,
        },
    }


def parked(name: str, version: str, request: LoadRequest) -> dict[str, Any]:
    """Return the entry of a model that is registered without workers; `request` is what it will load with."""
    given = request.settings
    return {
        "modelName": name,
        "modelVersion": version,
        "modelUrl": request.source or name,
        "runtime": "python",
        "minWorkers": 0,
        "maxWorkers": 0,
        "batchSize": int(given.get("max_batch", 1)),
        "maxBatchDelay": int(given.get("batch_timeout_ms", 100)),
        "responseTimeout": int(given.get("execution_limit_s", 120)),
        "startupTimeout": int(given.get("load_limit_s", 120)),
        "clientTimeoutInMills": 0,
        **ALIKE,
        "loadedAtStartup": False,
        "workers": [],
        "jobQueueStatus": {"remainingCapacity": 0, "pendingRequests": 0},
    }


def _worker(instance: Instance) -> dict[str, Any]:
    pid = instance.pid
    started_s = None if pid is None else started_at_s(pid)
    since = (
        "" if started_s is None else datetime.fromtimestamp(started_s, UTC).isoformat(timespec="milliseconds")
    )
    return {
        "id": str(instance.number),
        "startTime": since.replace("+00:00", "Z"),
        "status": "READY" if instance.is_ready else "UNLOADING",
        "memoryUsage": instance.resident_bytes,
        "pid": -1 if pid is None else pid,
        "gpu": False,
        "gpuUsage": "N/A",
    }
