"""A thread beside the head's loop, for what takes longer than it may wait: planning, reading, hashing."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Aside:
    """Runs one call after another in a thread of its own, which is there between `start` and `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Take calls from now on."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"partita-{self._name}")
        self._thread.submit(int)  # which makes the thread: else the first call would

    async def run(self, call: Callable[[], T]) -> T:
        """Return what the call returns. Raises what it raises."""
        assert self._thread is not None, "started"
        return await self._loop.run_in_executor(self._thread, call)

    async def stop(self) -> None:
        """Take no more calls, and wait for the one that runs."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await self._loop.run_in_executor(None, thread.shutdown)
