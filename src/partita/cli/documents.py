"""Plans as the JSON documents that users script against."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from partita.core.errors import InvalidInput
from partita.core.plan import Plan
from partita.settings import InstanceSettings


class _Group(msgspec.Struct, frozen=True):
    threads: int
    batch: int
    count: int = 1
    micro_batch: int | None = None


class _Document(msgspec.Struct, frozen=True):
    instances: tuple[_Group, ...]
    batch: int | None = None


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as ``partita plan --json`` prints it; equal instances are counted."""
    counted = Counter((i.threads, i.batch, i.micro_batch) for i in plan.instances)
    return {
        "cores": plan.cores,
        "batch": plan.batch,
        "objective": str(plan.objective),
        "instances": [
            {"count": count, "threads": threads, "batch": batch, "micro_batch": micro_batch}
            for (threads, batch, micro_batch), count in sorted(counted.items(), reverse=True)
        ],
        "expected_ms": plan.expected_ms,
        "measured_ms": plan.measured_ms,
        "fat_ms": plan.fat_ms,
        "speedup": plan.speedup,
        **({} if plan.lowered is None else {"precision": msgspec.to_builtins(plan.lowered)}),
    }


def read_plan(file: Path) -> tuple[InstanceSettings, ...]:
    """Return the instances of a plan that ``partita plan --json`` wrote; raises `InvalidInput`."""
    try:
        document = msgspec.convert(json.loads(file.read_bytes()), _Document)
        instances = tuple(
            msgspec.convert(
                {"threads": group.threads, "batch": group.batch, "micro_batch": group.micro_batch},
                InstanceSettings,
            )
            for group in document.instances
            for _ in range(group.count)
        )
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{file} is no plan as `partita plan --json` prints one: {error}") from error
    if not instances:
        raise InvalidInput(f"{file} is a plan of no instances")
    return instances
