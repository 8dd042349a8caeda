"""The worker's one loop: receive, execute, answer. It holds no policy."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns

from partita.core.errors import ConnectionClosed
from partita.system.channels import Channel
from partita.wire.codec import decode_from_head, encode
from partita.wire.messages import BatchDone, BatchFailed, Execute, Measured, PartDone
from partita.worker.arena import OutputArena
from partita.worker.gather import Gather
from partita.worker.pipeline import Run
from partita.worker.results import Part, Results
from partita.worker.runtimes.interface import SendPart
from partita.worker.user_code import describe


class Loop:
    """Executes batches in the order in which they come, one at a time, until told to stop."""

    def __init__(
        self,
        channel: Channel,
        *,
        run: Run,
        gather: Gather,
        results: Results,
        arena: OutputArena,
        user_folder: Path | None = None,
        take_metrics: Callable[[], tuple[Measured, ...]] | None = None,
        offer_parts: Callable[[SendPart], None] | None = None,
    ) -> None:
        self._channel = channel
        self._run = run
        self._gather = gather
        self._results = results
        self._arena = arena
        self._announced_bytes = arena.nbytes
        self._user_folder = user_folder
        self._take_metrics = take_metrics
        """Returns what a handler has measured since the last time; None = it measures nothing."""
        self._stopping = False
        self._batch_id = 0
        self._first_row = 0
        """Item of the batch that the execution at hand begins with."""
        if offer_parts is not None:
            offer_parts(self._send_part)

    def stop(self) -> None:
        """Finish the batch at hand and return from `run`; safe in a signal handler."""
        self._stopping = True
        self._channel.shutdown_receiving()

    def run(self) -> None:
        """Serve until `Stop`, `stop` or the end of the channel."""
        try:
            while not self._stopping:
                frame, _ = self._channel.receive()
                message = decode_from_head(frame)
                if not isinstance(message, Execute):
                    return
                self._channel.send(encode(self._execute(message)))
        except ConnectionClosed:
            return

    def _execute(self, message: Execute) -> BatchDone | BatchFailed:
        started = perf_counter_ns()
        self._batch_id, self._first_row = message.batch_id, 0
        try:
            parts, infer_ns = self._run_parts(message)
            outputs = self._arena.write(message.slot, parts)
        except MemoryError as error:
            return BatchFailed(message.batch_id, describe(error, self._user_folder), "out_of_memory")
        except (Exception, SystemExit) as error:
            return BatchFailed(message.batch_id, describe(error, self._user_folder))
        grown = self._arena.nbytes if self._arena.nbytes != self._announced_bytes else 0
        self._announced_bytes = self._arena.nbytes
        measured = () if self._take_metrics is None else self._take_metrics()
        total_ns = perf_counter_ns() - started
        return BatchDone(message.batch_id, outputs, started, total_ns, infer_ns, grown, measured)

    def _send_part(self, row: int, part: bytes) -> None:
        self._channel.send(encode(PartDone(self._batch_id, self._first_row + row, part)))

    def _run_parts(self, message: Execute) -> tuple[list[Part], int]:
        executions = message.executions
        if len(executions) <= 1:
            batch, rows = self._gather.batch(message)
            outputs, infer_ns = self._run(batch, rows, executions[0] if executions else rows)
            return [self._results.ordered(outputs, rows)], infer_ns
        parts: list[Part] = []
        total_ns = 0
        pieces = list(split(sum(chunk.rows for chunk in message.chunks), executions))
        arrays = self._gather.parts(message, [stop - start for start, stop, _ in pieces])
        for (self._first_row, _, size), (piece, rows) in zip(pieces, arrays, strict=True):
            outputs, infer_ns = self._run(piece, rows, size)
            parts.append(self._results.ordered(outputs, rows))
            total_ns += infer_ns
        return parts, total_ns


def split(rows: int, executions: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, size) of each execution: it takes the items that are left, at most its size.

    A size above the items left means to pad up to it. Items beyond the last execution are one more.
    """
    start = 0
    for size in executions:
        if start >= rows:
            return
        stop = min(start + size, rows)
        yield start, stop, size
        start = stop
    if start < rows:
        yield start, rows, rows - start
