"""What a simulated server counts: for the controller's samples, and for the results."""

from array import array

from partita.machines.work import Batch
from partita.planning.load import DepthMeter, Sample


class Counts:
    """Counters since the last sample, and the latency of every request."""

    def __init__(self, requests: int) -> None:
        self.latencies_s = array("d", bytes(8 * requests))
        """By request, seconds; 0 while it is not answered, −1 where it was refused."""
        self.answered = self.refused = 0
        self.meter = DepthMeter()
        self._batches = self._batch_items = self._timeouts = 0
        self._dispatched = self._answered = 0
        self._queued_s = self._latency_s = 0.0

    def count_batch(self, batch: Batch) -> None:
        """A batch was formed."""
        self._batches += 1
        self._batch_items += batch.items
        dispatched_s = batch.dispatched_s
        for job, first, _ in batch.pieces:
            if first == 0:
                self._dispatched += 1
                self._queued_s += dispatched_s - job.admitted_s

    def count_answer(self, request: int, latency_s: float) -> None:
        """All items of a request were executed."""
        self.latencies_s[request] = latency_s
        self.answered += 1
        self._answered += 1
        self._latency_s += latency_s

    def count_refusal(self, request: int) -> None:
        """The queue had no room."""
        self.latencies_s[request] = -1.0
        self.refused += 1

    def sample(self, now_s: float, depth_now: int, timeouts: int) -> Sample:
        """Return what happened since the last call; `timeouts` are the dispatcher's since its start."""
        found = self.meter.take(depth_now)
        sample = Sample(
            now_s=now_s,
            **found._asdict(),
            batches=self._batches,
            batch_items=self._batch_items,
            timeouts=timeouts - self._timeouts,
            dispatched=self._dispatched,
            queued_s=self._queued_s,
            answered=self._answered,
            latency_s=self._latency_s,
        )
        self._timeouts = timeouts
        self._batches = self._batch_items = 0
        self._dispatched = self._answered = 0
        self._queued_s = self._latency_s = 0.0
        return sample
