"""What takes longer than it may is cut off, and what was found by then is reported."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ends_within(limit_s: float, finish: Callable[[], int]) -> Iterator[None]:
    """End this process with the status that `finish` returns if the block is not left in time.

    Nothing that the block waits for can hold it up: `finish` runs in a thread of its own, and workers end
    with the process that started them.
    """

    def cut_off() -> None:
        print(f"\nended after {limit_s:.0f} s, with what there is", flush=True)
        status = 1
        try:
            status = finish()
        finally:
            sys.stdout.flush()
            os._exit(status)

    timer = threading.Timer(limit_s, cut_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
