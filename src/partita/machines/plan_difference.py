"""What it takes to get from the instances that are there to those of a plan: a difference of multisets.

What tells workers apart is all but b, and where they may roam: an instance that only gets another b keeps
its worker, and the dispatcher alone hears of it.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from partita.core.plan import InstanceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a plan is made of instances that are there, and what is missing or left over."""

    assigned: Mapping[int, InstanceSpec]
    """Instances that are part of the plan, each with what it is to be there."""
    missing: tuple[InstanceSpec, ...]
    """What has to be started, in the plan's order."""
    left_over: tuple[int, ...]
    """Instances that the plan has no use for."""


def worker_key(spec: InstanceSpec) -> Hashable:
    """What a worker cannot change once it runs: specs of equal keys can be served by the same worker."""
    return spec.model, spec.device, spec.runtime, spec.threads, spec.cores


def difference(tiers: Sequence[Mapping[int, InstanceSpec]], wanted: Sequence[InstanceSpec]) -> Difference:
    """Assign instances to the specs of a plan, each tier being used up before the next is asked.

    Within a tier those that are exactly as wanted come first, then those of another b, by number.
    """
    chosen: dict[int, int] = {}  # index in `wanted`: instance
    for tier in tiers:
        free: dict[Hashable, list[int]] = defaultdict(list)
        for number in sorted(tier):
            free[worker_key(tier[number])].append(number)
        for is_exact in (True, False):
            for index, spec in enumerate(wanted):
                alike = free[worker_key(spec)]
                fits = [n for n in alike if not is_exact or tier[n] == spec] if index not in chosen else []
                if fits:
                    alike.remove(fits[0])
                    chosen[index] = fits[0]
    used = set(chosen.values())
    return Difference(
        assigned={chosen[index]: spec for index, spec in enumerate(wanted) if index in chosen},
        missing=tuple(spec for index, spec in enumerate(wanted) if index not in chosen),
        left_over=tuple(n for tier in tiers for n in sorted(tier) if n not in used),
    )


def share_cores(a: InstanceSpec, b: InstanceSpec) -> bool:
    """Whether two instances cannot execute at once; where cores are not assigned, t alone decides."""
    if a.cores and b.cores:
        return not set(a.cores).isdisjoint(b.cores)
    return a.threads != b.threads


def round_robin(numbers: Iterable[int], specs: Mapping[int, InstanceSpec]) -> list[int]:
    """Return instances so that devices take turns, the newest instance of each first."""
    by_device: dict[str, list[int]] = defaultdict(list)
    for number in sorted(numbers, reverse=True):
        by_device[specs[number].device].append(number)
    ordered: list[int] = []
    for turn in range(max(map(len, by_device.values()), default=0)):
        ordered += [group[turn] for _, group in sorted(by_device.items()) if turn < len(group)]
    return ordered
