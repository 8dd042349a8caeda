"""Memory that several processes map: an anonymous file that no file system names.

Pages are given by the kernel when first written, so a large arena costs what is used of it. The file can
grow and never shrink (sealed), so a mapping of it cannot be cut off under a reader.
"""

import fcntl
import mmap
import os

PAGE_BYTES = mmap.PAGESIZE


class SharedMemory:
    """A mapped memory file. Whoever holds one closes it; the memory lives until the last holder does."""

    __slots__ = ("_fd", "_mapping", "_view", "_writable")

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        self._fd = fd
        self._writable = writable
        self._map(nbytes)

    @classmethod
    def create(cls, nbytes: int, name: str) -> "SharedMemory":
        """Make a new file of zeros; `name` shows in ``/proc/PID/maps`` and means nothing else."""
        fd = os.memfd_create(f"partita-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, _at_least_a_page(nbytes))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            os.fchmod(fd, 0o400)  # a receiver of a read-only descriptor cannot open it again for writing
            return cls(fd, nbytes, writable=True)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int, *, writable: bool) -> "SharedMemory":
        """Map a file that came as a descriptor, which now belongs to the result.

        Raises `ValueError` if the file is smaller than `nbytes`, `PermissionError` if it must not be written.
        """
        return cls(fd, nbytes, writable=writable)

    @property
    def fd(self) -> int:
        """Descriptor of the file; −1 after `close`."""
        return self._fd

    @property
    def view(self) -> memoryview:
        """All bytes; a new view after `grow` (an old one stays valid and sees the same memory)."""
        return self._view

    @property
    def nbytes(self) -> int:
        """Bytes mapped."""
        return len(self._view)

    def grow(self, nbytes: int) -> None:
        """Map at least `nbytes`, enlarging the file if it is smaller and writable here."""
        if nbytes <= self.nbytes:
            return
        if self._writable and os.fstat(self._fd).st_size < nbytes:
            os.ftruncate(self._fd, nbytes)
        self._map(nbytes)

    def reopen_read_only(self) -> int:
        """Return a new close-on-exec descriptor of the same file that cannot be mapped for writing."""
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)

    def release(self, offset: int, nbytes: int) -> None:
        """Give the whole pages inside a range back to the system; they read as zeros afterwards."""
        first = -(-offset // PAGE_BYTES) * PAGE_BYTES
        last = (offset + nbytes) // PAGE_BYTES * PAGE_BYTES
        if first < last:
            self._mapping.madvise(mmap.MADV_REMOVE, first, last - first)

    def close(self) -> None:
        """Close and let go of the mapping; a second time does nothing.

        The mapping itself ends with the last view or array on it. It is never unmapped by force: an
        array on a released view would point into nothing, since numpy does not hold the buffer's lock.
        """
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        del self._mapping
        self._view = memoryview(b"")

    def _map(self, nbytes: int) -> None:
        size = os.fstat(self._fd).st_size
        if size < nbytes:
            raise ValueError(f"the memory file has {size} bytes, {nbytes} were announced")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if self._writable else 0)
        self._mapping = mmap.mmap(self._fd, _at_least_a_page(nbytes), mmap.MAP_SHARED, protection)
        self._view = memoryview(self._mapping)[:nbytes]


def _at_least_a_page(nbytes: int) -> int:
    return max(nbytes, PAGE_BYTES)
