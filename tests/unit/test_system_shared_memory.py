import fcntl
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from partita.system.shared_memory import PAGE_BYTES, SharedMemory


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    created = SharedMemory.create(4 * PAGE_BYTES, "test")
    yield created
    created.close()


def used_bytes(memory: SharedMemory) -> int:
    return os.fstat(memory.fd).st_blocks * 512


def test_pages_cost_nothing_until_written(memory: SharedMemory) -> None:
    assert memory.nbytes == 4 * PAGE_BYTES
    assert used_bytes(memory) == 0
    memory.view[5] = 1
    assert used_bytes(memory) == PAGE_BYTES


def test_a_reader_sees_what_is_written_and_cannot_write(memory: SharedMemory) -> None:
    reader = SharedMemory.attach(memory.reopen_read_only(), memory.nbytes, writable=False)
    memory.view[10:13] = b"abc"
    assert bytes(reader.view[10:13]) == b"abc"
    assert reader.view.readonly
    assert not np.ndarray(4, "u1", reader.view).flags.writeable
    with pytest.raises(OSError, match="denied"):
        SharedMemory.attach(reader.fd, memory.nbytes, writable=True)
    reader.close()


def test_descriptors_are_close_on_exec(memory: SharedMemory) -> None:
    read_only = memory.reopen_read_only()
    for fd in (memory.fd, read_only):
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(read_only)


def test_the_file_cannot_shrink_under_a_reader(memory: SharedMemory) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, PAGE_BYTES)


def test_growing_keeps_contents_and_older_views(memory: SharedMemory) -> None:
    memory.view[0] = 7
    old = np.ndarray(4, "u1", memory.view)
    reader = SharedMemory.attach(memory.reopen_read_only(), memory.nbytes, writable=False)
    memory.grow(8 * PAGE_BYTES)
    memory.view[8 * PAGE_BYTES - 1] = 9
    memory.view[1] = 8
    assert list(old[:2]) == [7, 8]
    reader.grow(8 * PAGE_BYTES)
    assert (reader.view[0], reader.view[8 * PAGE_BYTES - 1]) == (7, 9)
    reader.close()


def test_a_reader_cannot_map_more_than_there_is(memory: SharedMemory) -> None:
    reader = SharedMemory.attach(memory.reopen_read_only(), memory.nbytes, writable=False)
    with pytest.raises(ValueError, match="were announced"):
        reader.grow(100 * PAGE_BYTES)
    assert bytes(reader.view[:2]) == b"\0\0"
    reader.close()
    fd = memory.reopen_read_only()
    with pytest.raises(ValueError, match="were announced"):
        SharedMemory.attach(fd, 100 * PAGE_BYTES, writable=False)
    os.close(fd)


def test_released_pages_go_back_and_neighbours_stay(memory: SharedMemory) -> None:
    memory.view[:] = b"x" * memory.nbytes
    memory.release(5, 10)
    memory.release(PAGE_BYTES - 1, PAGE_BYTES + 2)
    assert used_bytes(memory) == 3 * PAGE_BYTES
    assert memory.view[PAGE_BYTES - 1] == ord("x")
    assert memory.view[PAGE_BYTES] == 0
    assert memory.view[2 * PAGE_BYTES] == ord("x")


def test_closing_twice_and_with_views_held() -> None:
    memory = SharedMemory.create(10, "test")
    held = np.ndarray(10, "u1", memory.view)
    held[3] = 4
    memory.close()
    memory.close()
    assert memory.fd == -1
    assert held[3] == 4


def test_it_is_in_no_file_system(memory: SharedMemory) -> None:
    assert os.readlink(f"/proc/self/fd/{memory.fd}").startswith("/memfd:partita-test")
    assert mmap.PAGESIZE == PAGE_BYTES
