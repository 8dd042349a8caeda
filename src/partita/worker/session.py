"""A worker's life after its environment is set: load, warm up, announce, loop."""

import os
import signal
import sys
import time
import traceback

from partita.core.errors import ConnectionClosed, PartitaError
from partita.system.channels import Channel
from partita.system.shared_memory import PAGE_BYTES, SharedMemory
from partita.wire.codec import decode_from_head, encode
from partita.wire.messages import Ready, Start, StartFailed
from partita.worker.arena import OutputArena
from partita.worker.gather import Gather
from partita.worker.loading import LoadedModel, load_model
from partita.worker.loop import Loop
from partita.worker.results import Results
from partita.worker.user_code import describe


def run(channel: Channel, frame: bytes, fds: list[int], *, pinned: bool, started_s: float) -> int:
    """Load what the first frame says and serve it; returns the exit code."""
    try:
        start = decode_from_head(frame)
        if not isinstance(start, Start) or len(fds) != 1:
            raise PartitaError("the first message must be Start, with the descriptor of the inputs")
        inputs = SharedMemory.attach(fds[0], start.input_arena_bytes, writable=False)
        model = load_model(start)
        arena = OutputArena(model.signature, slots=start.output_slots, slot_bytes=model.slot_bytes)
    except (Exception, SystemExit) as error:
        return _report(channel, error)
    loop = Loop(
        channel,
        run=model.run,
        gather=Gather(inputs.view, model.signature),
        results=Results(model.signature),
        arena=arena,
        user_folder=model.user_folder,
    )
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    outputs_fd = arena.reopen_read_only()
    ready = _ready(model, arena, start, pinned, time.monotonic() - started_s)
    try:
        channel.send(encode(ready), [outputs_fd])
    except ConnectionClosed:
        return 0
    finally:
        os.close(outputs_fd)
    loop.run()
    return 0


def _ready(model: LoadedModel, arena: OutputArena, start: Start, pinned: bool, load_s: float) -> Ready:
    refused = () if pinned else (f"pinning to cores {list(start.cores)} was refused; running anywhere",)
    return Ready(
        signature=model.signature,
        load_s=load_s,
        resident_bytes=_resident_bytes(),
        output_arena_bytes=arena.nbytes,
        runtime_version=model.version,
        memory=model.memory,
        threads_seen=model.threads_seen,
        pinned=pinned,
        warnings=(*refused, *model.warnings),
    )


def _report(channel: Channel, error: BaseException) -> int:
    """Tell the head why there is no model: a short reason to it, the whole story to standard error."""
    if not isinstance(error, PartitaError) or error.__cause__ is not None:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, MemoryError):
        code = "out_of_memory"
    else:
        code = error.code if isinstance(error, PartitaError) else "load_failed"
    try:
        channel.send(encode(StartFailed(code, describe(error) or "out of memory")))
    except ConnectionClosed:
        return 0
    return 1


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES
