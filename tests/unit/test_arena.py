"""The input arena: rows of one owner at a time, whole again when all are given back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.arena import ALIGNMENT, EXTENT_BYTES, Extent, FreeSpace, InputArena


@contextmanager
def an_arena(nbytes: int, rows_hint: int = 1) -> Iterator[InputArena]:
    arena = InputArena(nbytes, name="test", rows_hint=rows_hint)
    try:
        yield arena
    finally:
        arena.close()


def test_rows_of_one_extent_follow_each_other() -> None:
    with an_arena(1 << 20) as arena:
        pool = arena.pool("a", (16, 4))
        extent = pool.reserve(3)
        assert extent is not None
        assert extent.rows == 3
        assert pool.reserve(5) is extent
        assert (extent.rows, extent.owners) == (8, 2)
        assert all(start % ALIGNMENT == 0 for start in extent.starts)
        pool.release(extent)
        assert extent.rows == 8, "reused only as a whole"
        pool.release(extent)
        assert (extent.rows, arena.owned_items()) == (0, 0)
        assert pool.reserve(1) is extent, "and then from its beginning: it is still warm in the cache"
        pool.release(extent)
        arena.check()


def test_an_extent_has_the_usual_size_or_what_the_hint_or_the_request_needs() -> None:
    with an_arena(64 << 20, rows_hint=64) as arena:
        small, large = arena.pool("small", (16,)).reserve(1), arena.pool("large", (1 << 16,)).reserve(1)
        huge = arena.pool("huge", (1 << 16,)).reserve(100)
        assert small is not None
        assert large is not None
        assert huge is not None
        assert small.capacity == EXTENT_BYTES // 16
        assert large.capacity == 64
        assert huge.capacity == 100
        arena.check()


def test_a_full_arena_says_so_and_takes_again_what_was_given_back() -> None:
    with an_arena(4096) as arena:
        pool = arena.pool("a", (1024,))
        first, second = pool.reserve(2), pool.reserve(2)
        assert first is not None
        assert second is not None
        assert pool.reserve(1) is None
        assert pool.reserve(100) is None
        pool.release(first)
        third = pool.reserve(2)
        assert third is not None
        arena.check()
        pool.release(second)
        pool.release(third)
        assert arena.owned_items() == 0


def test_where_the_usual_extent_does_not_fit_a_smaller_one_does() -> None:
    with an_arena(1024) as arena:
        extent = arena.pool("a", (100,)).reserve(3)
        assert extent is not None
        assert extent.capacity == 3
        arena.check()


def test_pools_that_nobody_uses_make_room_for_another() -> None:
    with an_arena(1 << 16) as arena:
        idle = arena.pool("idle", (1 << 14,))
        extent = idle.reserve(4)
        assert extent is not None
        other = arena.pool("other", (1 << 15,))
        assert other.reserve(1) is None
        idle.release(extent)
        assert other.reserve(1) is not None
        assert arena.pool("idle", (1 << 14,)) is not idle
        arena.check()


def test_pools_beyond_the_limit_are_dropped_unless_in_use() -> None:
    with an_arena(64 << 20) as arena:
        used = arena.pool("used", (8,))
        assert used.reserve(1) is not None
        for number in range(10 * InputArena.MAX_POOLS):
            pool = arena.pool(number, (8,))
            extent = pool.reserve(1)
            assert extent is not None
            pool.release(extent)
        assert len(arena.pools) <= InputArena.MAX_POOLS
        assert arena.pool("used", (8,)) is used
        arena.check()


def test_a_range_given_back_twice_is_an_error() -> None:
    space = FreeSpace(256)
    start = space.take(64)
    assert start == 0
    space.give_back(0, 64)
    with pytest.raises(AssertionError, match="twice"):
        space.give_back(0, 64)


def test_neighbouring_ranges_are_merged() -> None:
    space = FreeSpace(256)
    starts = [space.take(64) for _ in range(4)]
    assert space.take(64) is None
    for index in (2, 0, 3, 1):
        start = starts[index]
        assert start is not None
        space.give_back(start, 64)
    assert space.take(256) == 0


@dataclass(frozen=True)
class Owned:
    extent: Extent
    row_bytes: tuple[int, ...]
    first: int
    rows: int

    def ranges(self) -> Iterator[range]:
        for start, size in zip(self.extent.starts, self.row_bytes, strict=True):
            yield range(start + self.first * size, start + (self.first + self.rows) * size)


SHAPES = [(16,), (100, 8), (1000,), (3, 5, 7)]


@given(
    nbytes=st.sampled_from([4096, 64 << 10, 256 << 10]),
    hint=st.sampled_from([1, 16]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(range(len(SHAPES))), st.integers(1, 40)),
            st.integers(0, 1000),
        ),
        max_size=80,
    ),
)
@settings(max_examples=150, deadline=None)
def test_rows_in_use_never_overlap(nbytes: int, hint: int, steps: list[tuple[int, int] | int]) -> None:
    with an_arena(nbytes, hint) as arena:
        owned: list[Owned] = []
        for step in steps:
            if isinstance(step, tuple):
                shape, rows = step
                pool = arena.pool(shape, SHAPES[shape])
                extent = pool.reserve(rows)
                if extent is not None:
                    owned.append(Owned(extent, pool.row_bytes, extent.rows - rows, rows))
                    assert extent.rows <= extent.capacity
            elif owned:
                gone = owned.pop(step % len(owned))
                gone.extent.pool.release(gone.extent)
            arena.check()
            assert arena.owned_items() == len(owned)
            ranges = sorted((r for o in owned for r in o.ranges()), key=lambda r: r.start)
            assert all(a.stop <= b.start for a, b in pairwise(ranges))
            assert all(0 <= r.start <= r.stop <= nbytes for r in ranges)
        for gone in owned:
            gone.extent.pool.release(gone.extent)
        arena.check()
        whole = arena.pool("whole", (nbytes,)).reserve(1)
        assert whole is not None, "all of it can be had again"
