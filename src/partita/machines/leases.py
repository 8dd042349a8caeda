"""Core leases: the one rule that Σ threads executing ≤ cores, at every moment (DESIGN §2).

Instances stay resident; executing needs a lease on the instance's cores, or on one of its GPU's slots. Where
no other instance shares them the lease is always free, so a plan of disjoint instances pays nothing for the
rule. Where they do, instances take turns: who finds the cores leased waits, and who came later does not get
them before.
"""

from collections.abc import Callable, Collection

Wake = Callable[[], None]
Notice = Callable[[], None]


class _Slots:
    """The slots of one device: how many instances may execute there at once, and which do."""

    __slots__ = ("count", "held", "members")

    def __init__(self, count: int) -> None:
        self.count = count
        self.members: set[int] = set()
        self.held: set[int] = set()


class CoreLeases:
    """Which instance executes on which cores. One per machine, shared by all dispatchers."""

    def __init__(self) -> None:
        self._cores: dict[int, frozenset[int]] = {}
        self._rivals: dict[int, frozenset[int]] = {}
        self._held: set[int] = set()
        self._waiting: dict[int, None] = {}
        """Instances that have work and wait for their cores, in the order in which they came."""
        self._wakes: dict[int, Wake] = {}
        self._guests: dict[int, tuple[frozenset[int], Notice]] = {}
        self._pools: dict[str, _Slots] = {}
        self._pool_of: dict[int, _Slots] = {}
        """The device of each instance that needs a slot."""

    def register(
        self,
        instance: int,
        cores: Collection[int],
        wake: Wake | None = None,
        pool: tuple[str, int] | None = None,
    ) -> None:
        """Make an instance known, with the cores that it executes on (none = it contends with nobody).

        `pool` names a device of which it needs a slot instead, and says how many that has. `wake` is called
        when cores that it waits for may have become free; it asks `can_lease` again, later.
        """
        assert instance not in self._cores, instance
        rivals = self.sharing(cores)
        for rival in rivals:
            self._rivals[rival] |= {instance}
        self._cores[instance] = frozenset(cores)
        self._rivals[instance] = rivals
        if wake is not None:
            self._wakes[instance] = wake
        if pool is not None:
            name, count = pool
            slots = self._pools.setdefault(name, _Slots(count))
            slots.count = count
            slots.members.add(instance)
            self._pool_of[instance] = slots

    def forget(self, instance: int) -> None:
        """Drop an instance that is gone, with its lease if it held one."""
        if instance in self._held:
            self.release(instance)
        self._waiting.pop(instance, None)
        self._wake_rivals(instance)
        slots = self._pool_of.pop(instance, None)
        if slots is not None:
            slots.members.discard(instance)
        self._wakes.pop(instance, None)
        for rival in self._rivals.pop(instance):
            self._rivals[rival] -= {instance}
        del self._cores[instance]

    def knows(self, instance: int) -> bool:
        """Whether it is registered."""
        return instance in self._cores

    def sharing(self, cores: Collection[int]) -> frozenset[int]:
        """Return the instances that execute on any of these cores."""
        return frozenset(other for other, theirs in self._cores.items() if not theirs.isdisjoint(cores))

    # --- guests -----------------------------------------------------------------------------------

    def invite(self, guest: int, cores: Collection[int], notice: Notice) -> None:
        """Let somebody who holds no lease, say a worker that loads, use cores while nobody executes on them.

        `notice` is called whenever some of them are leased or given back; `free_among` tells which are free.
        """
        assert guest not in self._guests, guest
        self._guests[guest] = (frozenset(cores), notice)

    def dismiss(self, guest: int) -> None:
        """The guest needs no cores any more; unknown ones are ignored."""
        self._guests.pop(guest, None)

    def has_guests_beside(self, guest: int, cores: Collection[int]) -> bool:
        """Whether somebody else without a lease uses any of these cores."""
        return any(
            not theirs.isdisjoint(cores) for other, (theirs, _) in self._guests.items() if other != guest
        )

    def free_among(self, cores: Collection[int]) -> frozenset[int]:
        """Return those of these cores that nobody executes on."""
        return frozenset(cores).difference(*(self._cores[instance] for instance in self._held))

    def _tell_guests(self, instance: int) -> None:
        cores = self._cores[instance]
        for theirs, notice in list(self._guests.values()):
            if not theirs.isdisjoint(cores):
                notice()

    def has_rivals(self, instance: int) -> bool:
        """Whether another instance shares a core with this one, or there are fewer slots than instances."""
        slots = self._pool_of.get(instance)
        return bool(self._rivals[instance]) or (slots is not None and len(slots.members) > slots.count)

    @property
    def has_waiting(self) -> bool:
        """Whether anybody waits for cores."""
        return bool(self._waiting)

    def can_lease(self, instance: int, together: Collection[int] = ()) -> bool:
        """Whether its cores are leased to nobody, and nobody came before it who waits for one of them.

        Those in `together` are asked for at the same time and do not stand in each other's way.
        """
        rivals = self._rivals[instance]
        if not self._held.isdisjoint(rivals):
            return False
        if self._pool_of and not self._has_slot(instance, together):
            return False
        for waiting in self._waiting:
            if waiting == instance:
                return True
            if waiting in rivals and waiting not in together:
                return False
        return True

    def _has_slot(self, instance: int, together: Collection[int]) -> bool:
        """Whether a slot is free for it, and not for somebody who came before."""
        slots = self._pool_of.get(instance)
        if slots is None:
            return True
        free = slots.count - len(slots.held)
        for waiting in self._waiting:
            if waiting == instance:
                break
            free -= waiting in slots.members and waiting not in together
        return free > 0

    def wait(self, instances: Collection[int]) -> None:
        """Queue up for cores that are not free now; who waits already keeps the place."""
        for instance in instances:
            assert instance not in self._held, instance
            self._waiting.setdefault(instance)

    def withdraw(self, instance: int) -> None:
        """The instance has no work any more: it waits no longer."""
        if instance in self._waiting:
            del self._waiting[instance]
            self._wake_rivals(instance)

    def _wake_rivals(self, instance: int) -> None:
        """Wake whoever waits for cores of this instance and is first in line for all of theirs."""
        if not self._waiting:
            return
        if instance in self._pool_of:
            self._wake_pool(self._pool_of[instance])
        rivals = self._rivals[instance]
        before: list[int] = []
        for waiting in self._waiting:
            wake = self._wakes.get(waiting)
            if waiting in rivals and wake is not None and self._held.isdisjoint(self._rivals[waiting]):
                ahead = self._rivals[waiting].intersection(before)
                if all(self._wakes.get(other) == wake for other in ahead):  # they may wait together
                    wake()
            before.append(waiting)

    def _wake_pool(self, slots: _Slots) -> None:
        """Wake those that are first in line for the slots that are free."""
        free = slots.count - len(slots.held)
        for waiting in [one for one in self._waiting if one in slots.members][: max(0, free)]:
            wake = self._wakes.get(waiting)
            if wake is not None:
                wake()

    def lease(self, instance: int) -> None:
        """Take the cores, or a slot; ask `can_lease` first. Taking a lease twice is an error."""
        held = self._held
        assert held.isdisjoint(self._rivals[instance]), f"cores of instance {instance} are leased to another"
        assert instance not in held, instance
        if self._pool_of and (slots := self._pool_of.get(instance)) is not None:
            assert len(slots.held) < slots.count, f"no slot is free for instance {instance}"
            slots.held.add(instance)
        held.add(instance)
        self._waiting.pop(instance, None)
        if self._guests:
            self._tell_guests(instance)

    def release(self, instance: int) -> None:
        """Give the cores back, and wake who waits for them."""
        self._held.remove(instance)
        if self._pool_of and (slots := self._pool_of.get(instance)) is not None:
            slots.held.remove(instance)
        self._wake_rivals(instance)
        if self._guests:
            self._tell_guests(instance)

    def executing_cores(self) -> list[int]:
        """Every leased core, once per lease: duplicates would be a broken law."""
        return [core for instance in self._held for core in self._cores[instance]]

    def check(self) -> None:
        """Assert that every leased core is held once, that no device executes more than its slots allow, and
        that nobody waits who holds or is unknown.
        """
        cores = self.executing_cores()
        assert len(cores) == len(set(cores)), sorted(cores)
        assert self._held.isdisjoint(self._waiting), (self._held, self._waiting)
        assert self._waiting.keys() <= self._cores.keys(), self._waiting
        for instance, rivals in self._rivals.items():
            assert rivals == self.sharing(self._cores[instance]) - {instance}, (instance, rivals)
        for name, slots in self._pools.items():
            assert slots.held == self._held & slots.members, name
            assert len(slots.held) <= slots.count, (name, slots.held)
