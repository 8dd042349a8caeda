"""The input arena X: item data written once by the head and read in place by every worker (DESIGN §2).

Space is handed out in *extents*. An extent holds up to `capacity` items of one shape, each input's items in
consecutive rows, so that a batch of items that came one after another is a slice. Rows are only ever
appended; an extent is recycled whole once none of its items is needed.
"""

from bisect import insort
from collections.abc import Hashable

from partita.system.shared_memory import SharedMemory

ALIGNMENT = 64
"""Extents and the inputs inside them start at multiples of this, bytes (one cache line, one AVX-512 lane)."""

EXTENT_BYTES = 64 << 10
"""Usual size of an extent, bytes: small enough that items written are still in a core's cache when read."""


class FreeSpace:
    """First fit over the free ranges of an arena, neighbours merged when they are given back."""

    def __init__(self, nbytes: int) -> None:
        self._ranges: list[tuple[int, int]] = [(0, nbytes)]

    def take(self, nbytes: int) -> int | None:
        """Return where a range of this size begins, None if there is none."""
        for index, (start, size) in enumerate(self._ranges):
            if size >= nbytes:
                if size == nbytes:
                    del self._ranges[index]
                else:
                    self._ranges[index] = (start + nbytes, size - nbytes)
                return start
        return None

    def give_back(self, start: int, nbytes: int) -> None:
        """Return a range that `take` gave out."""
        insort(self._ranges, (start, nbytes))
        merged: list[tuple[int, int]] = []
        for begin, size in self._ranges:
            if merged and merged[-1][0] + merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                assert not merged or merged[-1][0] + merged[-1][1] < begin, "range given back twice"
                merged.append((begin, size))
        self._ranges = merged

    @property
    def free_bytes(self) -> int:
        """Bytes in all free ranges."""
        return sum(size for _, size in self._ranges)


class Extent:
    """Room for `capacity` items of one shape. `rows` are used from 0 on; `owners` count who needs them."""

    __slots__ = ("capacity", "nbytes", "owners", "pool", "rows", "start", "starts")

    def __init__(self, pool: "ItemPool", start: int, nbytes: int, starts: tuple[int, ...], capacity: int):
        self.pool = pool
        self.start = start
        self.nbytes = nbytes
        self.starts = starts
        """Where each input's row 0 begins in the arena, bytes."""
        self.capacity = capacity
        self.rows = 0
        self.owners = 0


class ItemPool:
    """Extents of one item shape: `row_bytes` of each input, signature order."""

    __slots__ = ("_arena", "_current", "row_bytes")

    def __init__(self, arena: "InputArena", row_bytes: tuple[int, ...]) -> None:
        self._arena = arena
        self._current: Extent | None = None
        self.row_bytes = row_bytes

    def reserve(self, n_items: int) -> Extent | None:
        """Take n consecutive rows for one new owner; None if the arena is full.

        The rows are ``extent.rows − n … extent.rows − 1`` of the extent that is returned.
        """
        extent = self._current
        if extent is None or extent.rows + n_items > extent.capacity:
            extent = self._renew(n_items)
            if extent is None:
                return None
        extent.rows += n_items
        extent.owners += 1
        return extent

    def release(self, extent: Extent) -> None:
        """One owner needs its rows no more."""
        extent.owners -= 1
        if not extent.owners:
            extent.rows = 0
            if extent is not self._current:
                self._arena.recycle(extent)

    def close(self) -> None:
        """Give the current extent back, if nobody needs it."""
        if self._current is not None and not self._current.owners:
            self._arena.recycle(self._current)
        self._current = None

    @property
    def is_unused(self) -> bool:
        """Whether no item of this shape is in the current extent."""
        return self._current is None or not self._current.owners

    def _renew(self, n_items: int) -> Extent | None:
        self.close()
        self._current = self._arena.extent(self, n_items)
        return self._current


class InputArena:
    """All of X for one service, in one memory file whose pages the kernel gives when first written.

    An extent has room for at least `rows_hint` items where the arena allows it (say, two batches).
    """

    MAX_POOLS = 64
    """Shapes kept ready at once; beyond it the unused ones are given back."""

    def __init__(self, nbytes: int, *, name: str, rows_hint: int = 1) -> None:
        self.memory = SharedMemory.create(nbytes, name)
        self.rows_hint = rows_hint
        self.view = self.memory.view
        self._free = FreeSpace(nbytes)
        self._nbytes = nbytes
        self._extents: set[Extent] = set()
        self.pools: dict[Hashable, ItemPool] = {}
        """The pools that are there, for looking: `pool` makes one that is not."""

    def pool(self, key: Hashable, row_bytes: tuple[int, ...]) -> ItemPool:
        """Return the pool of this item shape."""
        pool = self.pools.get(key)
        if pool is None:
            if len(self.pools) >= self.MAX_POOLS:
                self._drop_unused_pools(keep=None)
            pool = self.pools[key] = ItemPool(self, row_bytes)
        return pool

    def _drop_unused_pools(self, *, keep: ItemPool | None) -> None:
        for key, pool in list(self.pools.items()):
            if pool.is_unused and pool is not keep:
                pool.close()
                del self.pools[key]

    def extent(self, pool: ItemPool, n_items: int) -> Extent | None:
        """Take an extent for at least n items; None if there is no room even without the unused pools."""
        item_bytes = sum(pool.row_bytes)
        usual = EXTENT_BYTES // max(1, item_bytes)
        for capacity in (max(n_items, usual, self.rows_hint), n_items):
            sizes = [aligned(capacity * row) for row in pool.row_bytes]
            nbytes = max(sum(sizes), ALIGNMENT)
            start = self._free.take(nbytes)
            if start is None:
                self._drop_unused_pools(keep=pool)
                start = self._free.take(nbytes)
            if start is not None:
                starts = tuple(start + sum(sizes[:k]) for k in range(len(sizes)))
                extent = Extent(pool, start, nbytes, starts, capacity)
                self._extents.add(extent)
                return extent
        return None

    def recycle(self, extent: Extent) -> None:
        """Take an extent back that nobody owns."""
        assert not extent.owners
        self._extents.remove(extent)
        self._free.give_back(extent.start, extent.nbytes)

    def owned_items(self) -> int:
        """Owners over all extents: 0 when nothing is in flight."""
        return sum(extent.owners for extent in self._extents)

    def close(self) -> None:
        """Unmap the arena; workers that still map it keep their own mapping."""
        self.view.release()
        self.memory.close()

    def check(self) -> None:
        """Assert that every byte is free or in exactly one extent."""
        used = sum(extent.nbytes for extent in self._extents)
        assert used + self._free.free_bytes == self._nbytes, (used, self._free.free_bytes, self._nbytes)


def aligned(nbytes: int) -> int:
    """Round a size up to a multiple of `ALIGNMENT`, bytes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
