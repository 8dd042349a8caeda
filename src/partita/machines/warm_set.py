"""Which instances to keep loaded and asleep, so that a switch to a likely plan is immediate (DESIGN §4)."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from partita.core.plan import InstanceSpec, Plan
from partita.machines.plan_difference import difference, worker_key


class WarmSet:
    """The likely plans, the memory that their sleeping instances may take, and what instances hold in it.

    An instance that was not measured counts as the largest that was. With nothing measured it counts
    nothing, so measure one first.
    """

    def __init__(self) -> None:
        self.plans: tuple[Plan, ...] = ()
        self.max_bytes = 0
        self._resident: dict[Hashable, int] = {}
        self._failed: set[Hashable] = set()

    def want(self, plans: Sequence[Plan], max_bytes: int) -> None:
        """Take these plans, the likeliest first. What failed to load before may be tried again."""
        self.plans = tuple(plans)
        self.max_bytes = max_bytes
        self._failed.clear()

    def measured(self, spec: InstanceSpec, resident_bytes: int) -> None:
        """An instance like this holds so much memory."""
        key = worker_key(spec)
        self._resident[key] = max(resident_bytes, self._resident.get(key, 0))

    def failed(self, spec: InstanceSpec) -> None:
        """A sleeping instance like this died, or did not load: it is not started again unless asked anew."""
        self._failed.add(worker_key(spec))

    def bytes_of(self, spec: InstanceSpec) -> int:
        """What an instance holds in memory, or is taken to hold, bytes."""
        known = self._resident.get(worker_key(spec))
        return known if known is not None else max(self._resident.values(), default=0)

    def choose(
        self, spare: Mapping[int, InstanceSpec], in_use: Sequence[InstanceSpec]
    ) -> tuple[set[int], InstanceSpec | None]:
        """Return which of the spare instances to keep, and what to load next (None: nothing more fits)."""
        found = difference((spare,), self._wanted(in_use))
        keep: set[int] = set()
        left = self.max_bytes
        for number in found.assigned:
            size = self.bytes_of(spare[number])
            if size <= left:
                keep.add(number)
                left -= size
        for spec in found.missing:
            if worker_key(spec) not in self._failed and self.bytes_of(spec) <= left:
                return keep, spec
        return keep, None

    def _wanted(self, in_use: Sequence[InstanceSpec]) -> list[InstanceSpec]:
        """What the plans need beyond what is in use. They share instances: one is in force at a time."""
        have = Counter(map(worker_key, in_use))
        wanted: list[InstanceSpec] = []
        for plan in self.plans:
            needed: Counter[Hashable] = Counter()
            for spec in plan.instances:
                key = worker_key(spec)
                needed[key] += 1
                if needed[key] > have[key]:
                    have[key] += 1
                    wanted.append(spec)
        return wanted
