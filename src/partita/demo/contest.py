"""The two simple plans that a chosen one is compared with, and which of several plans are different."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from partita.core.plan import InstanceSpec, Plan


def fat(cores: int, batch: int) -> Plan:
    """Return ⟨1, T, B⟩."""
    return Plan(instances=(InstanceSpec(threads=cores, batch=batch),), cores=cores, batch=batch)


def one_thread_per_core(cores: int, batch: int) -> Plan:
    """Return ⟨T, 1, B/T⟩; where B is no multiple of T some instances get one item more."""
    bounds = [round(batch * k / cores) for k in range(cores + 1)]
    shares = [stop - start for start, stop in pairwise(bounds) if stop > start]
    return Plan(
        instances=tuple(InstanceSpec(threads=1, batch=share) for share in shares), cores=cores, batch=batch
    )


def key(plan: Plan) -> object:
    """Return what tells plans apart, wherever they are placed."""
    return tuple(plan.groups())


def different(plans: Iterable[Plan]) -> Iterator[Plan]:
    """Yield every plan that is not one of those before it."""
    seen: set[object] = set()
    for plan in plans:
        if key(plan) not in seen:
            seen.add(key(plan))
            yield plan
