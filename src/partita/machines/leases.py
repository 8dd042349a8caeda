"""Core leases: the one rule that Σ threads executing ≤ cores, at every moment (DESIGN §2).

Instances stay resident; executing needs a lease on the instance's cores. Where no other instance shares
them the lease is always free, so a plan of disjoint instances pays nothing for the rule.
"""

from collections.abc import Collection


class CoreLeases:
    """Which instance executes on which cores. One per machine, shared by all dispatchers."""

    def __init__(self) -> None:
        self._cores: dict[int, frozenset[int]] = {}
        self._rivals: dict[int, frozenset[int]] = {}
        self._held: set[int] = set()

    def register(self, instance: int, cores: Collection[int]) -> None:
        """Make an instance known, with the cores that it executes on (none = it contends with nobody)."""
        assert instance not in self._cores, instance
        self._cores[instance] = frozenset(cores)
        self._find_rivals()

    def forget(self, instance: int) -> None:
        """Drop an instance that is gone, with its lease if it held one."""
        self._held.discard(instance)
        del self._cores[instance]
        self._find_rivals()

    def _find_rivals(self) -> None:
        self._rivals = {
            a: frozenset(b for b, theirs in self._cores.items() if b != a and cores & theirs)
            for a, cores in self._cores.items()
        }

    def has_rivals(self, instance: int) -> bool:
        """Whether another instance shares a core with this one."""
        return bool(self._rivals[instance])

    def can_lease(self, instance: int) -> bool:
        """Whether none of the instance's cores is leased to another."""
        return self._held.isdisjoint(self._rivals[instance])

    def lease(self, instance: int) -> None:
        """Take the cores; ask `can_lease` first. Taking a lease twice is an error."""
        assert self.can_lease(instance), f"cores of instance {instance} are leased to another"
        assert instance not in self._held, instance
        self._held.add(instance)

    def release(self, instance: int) -> None:
        """Give the cores back."""
        self._held.remove(instance)

    def executing_cores(self) -> list[int]:
        """Every leased core, once per lease: duplicates would be a broken law."""
        return [core for instance in self._held for core in self._cores[instance]]

    def check(self) -> None:
        """Assert that every leased core is held once."""
        cores = self.executing_cores()
        assert len(cores) == len(set(cores)), sorted(cores)
