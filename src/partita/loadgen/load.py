"""Runs one load: warm-up, measured window, drain."""

import asyncio
import sys
from collections.abc import Callable

from partita.loadgen.loops import ClosedLoop, Loop, OpenLoop
from partita.loadgen.payload import Payload
from partita.loadgen.result import LoadResult
from partita.loadgen.spec import LoadSpec
from partita.loadgen.target import Target, Unreachable

_PROGRESS_S = 0.25

Progress = Callable[[float, int], None]
"""Called a few times a second with the seconds since the start, warm-up included, and the answers so far."""


def run_load(
    target: Target, payload: Payload, spec: LoadSpec, progress: Progress | None = None
) -> LoadResult:
    """Load the server and return the figures, in an event loop of its own.

    Raises `Unreachable` if no connection can be made at all.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(load(target, payload, spec, progress))


async def load(
    target: Target, payload: Payload, spec: LoadSpec, progress: Progress | None = None
) -> LoadResult:
    """Load the server on the running loop."""
    kind = ClosedLoop if spec.concurrency is not None else OpenLoop
    driver = kind(target, payload, spec, asyncio.get_running_loop())
    try:
        await driver.connect()
        driver.start()
        await _watch(driver, spec, progress)
        return driver.result()
    except OSError as error:
        raise Unreachable(f"cannot connect to {target}: {error.strerror or error}") from error
    finally:
        await driver.close()


async def _watch(driver: Loop, spec: LoadSpec, progress: Progress | None) -> None:
    """Wait for the end of the window, and then for what is still to be answered."""
    end = spec.warmup_s + spec.duration_s
    while (elapsed := driver.elapsed_s()) < end:
        await asyncio.sleep(min(_PROGRESS_S, end - elapsed))
        if progress is not None:
            progress(min(driver.elapsed_s(), end), driver.answered)
    await driver.drain(spec.drain_s)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
