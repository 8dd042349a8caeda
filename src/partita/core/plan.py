"""A plan: which instances run, with how many cores and items each."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Objective(StrEnum):
    """What a plan is chosen for."""

    LATENCY = "latency"
    """Least time until all B items of one aggregate batch are answered (Packrat, equation 1)."""
    THROUGHPUT = "throughput"
    """Most items per second, optionally within a latency limit."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class InstanceSpec:
    """One running copy of one model: t cores and at most b items per dispatch.

    `executions` are the sizes of the micro-batches that b items are run as, one after another, largest
    first. Their sum is b, or more where padding the last one up to a profiled size is cheaper.
    """

    model: str = ""
    device: str = "cpu:0"
    runtime: str = ""
    threads: int
    batch: int
    executions: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    """Logical CPU numbers, once placed; empty before."""
    affinity: tuple[int, ...] = ()
    """Where its worker may run, its own cores among them; empty = on its own cores alone."""
    slots: int = 0
    """On a GPU: how many instances may execute there at once; 0 = it is on cores."""

    def __post_init__(self) -> None:
        if not self.executions:
            object.__setattr__(self, "executions", (self.batch,))
        assert self.threads >= 1, self
        assert self.batch >= 1, self
        assert sum(self.executions) >= self.batch, self
        assert not self.cores or len(self.cores) == self.threads, self
        assert not self.affinity or set(self.affinity).issuperset(self.cores), self

    @property
    def micro_batch(self) -> int:
        """The largest number of items r in one execution."""
        return min(max(self.executions), self.batch)

    @property
    def pool(self) -> "tuple[str, int] | None":
        """The device whose slots it needs one of to execute, and how many that has; None on cores."""
        return (self.device, self.slots) if self.slots else None

    def placed(self, cores: Iterable[int], affinity: Iterable[int] = ()) -> "InstanceSpec":
        """Return the same instance on these logical CPUs."""
        return replace(self, cores=tuple(sorted(cores)), affinity=tuple(sorted(affinity)))

    def unplaced(self) -> "InstanceSpec":
        """Return the same instance with no cores assigned."""
        return replace(self, cores=(), affinity=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """The lower precision that a plan's instances compute in, and what was measured of it."""

    precision: str
    """``bf16`` or ``int8``."""
    deviation: float
    """How far outputs were off at most, relative to an item's largest value."""
    top1: float | None = None
    """Share of items whose largest value was in the same place; None where there is but one value."""
    speedup: float | None = None
    """How many times as fast as the fastest in the model's own precision; None where none was timed."""

    def __str__(self) -> str:
        ratio = "" if self.speedup is None else f", {self.speedup:.2f} times as fast as without"
        place = ", the largest value in the same place in"
        same = "" if self.top1 is None else f"{place} {self.top1:.1%} of items"
        return f"{self.precision}{ratio}: outputs off by up to {self.deviation:.2g}{same}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A multiset of instances in canonical order (most threads first, then most items).

    Of several models, members of an ensemble, each takes `batch` items or more.
    Times are milliseconds for one aggregate batch of `batch` items; `expected_ms` comes from profiles
    taken alone, `measured_ms` from running all instances at once.
    """

    instances: tuple[InstanceSpec, ...]
    cores: int
    batch: int
    objective: Objective = Objective.LATENCY
    expected_ms: float | None = None
    measured_ms: float | None = None
    fat_ms: float | None = None
    """Latency of ⟨1, T, B⟩ as one execution; None where it was never profiled."""
    lowered: Lowered | None = None
    """What its instances' lower precision costs; None = they compute in the model's own."""

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.instances, key=_canonical))
        object.__setattr__(self, "instances", ordered)
        assert sum(i.threads for i in ordered) <= self.cores, self
        several = len({i.model for i in ordered}) > 1  # each takes a batch of its own
        assert several or sum(i.batch for i in ordered) == self.batch, self

    @property
    def speedup(self) -> float | None:
        """How many times faster than the fat instance, by the best figure known."""
        chosen = self.measured_ms if self.measured_ms is not None else self.expected_ms
        return None if self.fat_ms is None or not chosen else self.fat_ms / chosen

    @property
    def placed_on(self) -> tuple[int, ...]:
        """Logical CPUs that its instances were given, each once, in order; empty where they have none."""
        return tuple(sorted({core for instance in self.instances for core in instance.cores}))

    def groups(self) -> list[tuple[InstanceSpec, int]]:
        """Return the distinct instances, cores left out, each with its count, in canonical order."""
        counted = Counter(instance.unplaced() for instance in self.instances)
        return sorted(counted.items(), key=lambda group: _canonical(group[0]))

    def __str__(self) -> str:
        return " ".join(f"⟨{n},{i.threads},{i.batch}⟩" for i, n in self.groups())


def _canonical(instance: InstanceSpec) -> tuple[object, ...]:
    return (
        instance.model,
        instance.device,
        -instance.threads,
        -instance.batch,
        tuple(-r for r in instance.executions),
        instance.runtime,
        instance.cores,
    )
