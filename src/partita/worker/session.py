"""A worker's life after its environment is set: load, warm up, announce, loop."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

from partita.core.errors import ConnectionClosed, PartitaError
from partita.system.channels import Channel
from partita.system.memory import resident_bytes
from partita.system.shared_memory import SharedMemory
from partita.wire.codec import decode_from_head, encode
from partita.wire.messages import Ready, Start, StartFailed
from partita.worker.arena import OutputArena
from partita.worker.gather import Gather
from partita.worker.loading import LoadedModel, load_model
from partita.worker.loop import Loop
from partita.worker.results import Results
from partita.worker.user_code import describe


def run(channel: Channel, frame: bytes, fds: list[int], *, pinned: bool, started_s: float) -> int:
    """Serve the process's only model, which SIGTERM ends after the batch at hand; returns the exit code."""
    return serve(channel, frame, fds, pinned=pinned, started_s=started_s, on_loaded=_end_on_sigterm)


def _end_on_sigterm(loop: Loop) -> None:
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())


def serve(
    channel: Channel,
    frame: bytes,
    fds: list[int],
    *,
    pinned: bool,
    started_s: float,
    loading: AbstractContextManager[object] | None = None,
    on_loaded: Callable[[Loop], None] = lambda _: None,
) -> int:
    """Load what the first frame says, within `loading`, and serve it; returns the exit code."""
    with ExitStack() as held:
        try:
            start = decode_from_head(frame)
            if not isinstance(start, Start) or len(fds) != 1:
                raise PartitaError("the first message must be Start, with the descriptor of the inputs")
            inputs = SharedMemory.attach(fds[0], start.input_arena_bytes, writable=False)
            held.callback(inputs.close)
            with loading or nullcontext():
                model = load_model(start, held)
            arena = OutputArena(
                model.signature,
                slots=start.output_slots,
                slot_bytes=model.slot_bytes,
                max_item_bytes=start.max_output_bytes,
            )
            held.callback(arena.close)
        except (Exception, SystemExit) as error:
            return _report(channel, error)
        loop = Loop(
            channel,
            run=model.run,
            gather=Gather(inputs.view, model.signature),
            results=Results(model.signature),
            arena=arena,
            user_folder=model.user_folder,
            take_metrics=model.take_metrics,
            offer_parts=model.offer_parts,
        )
        on_loaded(loop)
        outputs_fd = arena.reopen_read_only()
        ready = _ready(model, arena, pinned, time.monotonic() - started_s)
        try:
            channel.send(encode(ready), [outputs_fd])
        except ConnectionClosed:
            return 0
        finally:
            os.close(outputs_fd)
        loop.run()
        return 0


def _ready(model: LoadedModel, arena: OutputArena, pinned: bool, load_s: float) -> Ready:
    return Ready(
        signature=model.signature,
        load_s=load_s,
        resident_bytes=resident_bytes(os.getpid()) or 0,
        device_bytes=model.device_bytes,
        output_arena_bytes=arena.nbytes,
        runtime_version=model.version,
        memory=model.memory,
        threads_seen=model.threads_seen,
        pinned=pinned,
        warnings=model.warnings,
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
