"""A timer with microseconds on an event loop, whose own timers are rounded to whole milliseconds."""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o2004000


class PreciseTimer:
    """Calls back at a time of the monotonic clock; a timerfd of Linux. `close` it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._loop = loop
        self._callback = callback
        loop.add_reader(self._descriptor, self._fired)

    def set(self, delay_s: float) -> None:
        """Fire once, after this long; a time that has passed fires at once."""
        nanoseconds = max(1, int(delay_s * 1e9))
        setting = struct.pack("qqqq", 0, 0, *divmod(nanoseconds, 1_000_000_000))
        if self._libc.timerfd_settime(self._descriptor, 0, setting, None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def close(self) -> None:
        """Never fire again."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _fired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        self._callback()
