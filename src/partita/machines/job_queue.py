"""The bounded queue of one member: first come, first served, in lanes of equal shapes."""

from collections import deque
from collections.abc import Hashable, Iterator

from partita.machines.work import Job, Piece


class JobQueue:
    """Waiting items, at most `max_items`.

    Three places, emptied in this order: pieces to be run *alone* (their batch raised or its worker died),
    pieces *returned* unharmed by a lost instance, and the *lanes* of jobs in order of arrival. Ended jobs
    are dropped when they are met, or swept when they pile up.
    """

    def __init__(self, *, max_items: int) -> None:
        self.max_items = max_items
        self.items = 0
        """Items waiting, ended jobs left out."""
        self._lanes: dict[Hashable, deque[Job]] = {}
        self._returned: deque[Piece] = deque()
        self._alone: deque[Piece] = deque()
        self._dropped = 0
        """Jobs dropped since the last sweep: about as many dead entries are still in the lanes."""

    def can_admit(self, n_items: int) -> bool:
        """Whether n more items fit."""
        return self.items + n_items <= self.max_items

    def admit(self, job: Job) -> None:
        """Append a job; ask `can_admit` first."""
        self.items += job.n_items
        assert self.items <= self.max_items, "queue is full"
        lane = self._lanes.get(job.lane)
        if lane is None:
            lane = self._lanes[job.lane] = deque()
        lane.append(job)

    def put_back(self, piece: Piece, *, alone: bool) -> None:
        """Return a piece that was taken but not settled; it goes before everything that was never taken."""
        self.items += piece[2]
        (self._alone if alone else self._returned).append(piece)

    def drop(self, job: Job) -> None:
        """Take out what still waits of a job that has ended; its entries go when they are met."""
        assert job.ended
        held = sum(n for j, _, n in (*self._returned, *self._alone) if j is job)
        waiting = job.n_items - job.next_item + held
        if waiting:
            self.items -= waiting
            self._dropped += 1
            if self._dropped > max(64, self.items):
                self._sweep()

    # --- looking ----------------------------------------------------------------------------------

    def head(self) -> Job | None:
        """The job that would be served next; None when nothing waits."""
        for pieces in (self._alone, self._returned):
            while pieces and pieces[0][0].ended:
                pieces.popleft()
            if pieces:
                return pieces[0][0]
        lane = self._oldest_lane()
        return lane[0] if lane else None

    def oldest_unstarted(self) -> Job | None:
        """The job that has waited longest without any item dispatched: the one to time out first."""
        oldest = None
        for lane in self._lanes.values():
            for job in lane:
                if not job.ended and not job.has_started:
                    if oldest is None or job.admitted_s < oldest.admitted_s:
                        oldest = job
                    break
        return oldest

    def waiting_jobs(self) -> list[Job]:
        """Every job that has items waiting, in no particular order."""
        jobs = [p[0] for p in (*self._returned, *self._alone)]
        jobs += [job for lane in self._lanes.values() for job in lane]
        return [job for job in dict.fromkeys(jobs) if not job.ended]

    def next_lane_items(self, enough: int) -> int:
        """Items that one batch could take now, counted only up to `enough`."""
        if len(self._lanes) == 1 and not self._alone and not self._returned:
            return min(self.items, enough)
        count = 0
        for _, _, n in self._peek_pieces():
            count += n
            if count >= enough:
                return enough
        return count

    def _peek_pieces(self) -> Iterator[Piece]:
        head = self.head()
        if head is None:
            return
        if self._alone:
            yield self._alone[0]
            return
        yield from (p for p in self._returned if not p[0].ended and p[0].lane == head.lane)
        for job in self._lanes.get(head.lane, ()):
            if not job.ended:
                yield job, job.next_item, job.n_items - job.next_item

    # --- taking -----------------------------------------------------------------------------------

    def take(self, limit: int) -> tuple[list[Piece], int]:
        """Take up to `limit` items of one lane, oldest first; returns the pieces and their item count.

        A piece that must run alone comes alone; one that is larger than the limit comes in parts.
        """
        if self._alone:
            piece = self._take_alone(limit)
            if piece is not None:
                return [piece], piece[2]
        pieces: list[Piece] = []
        taken = self._take_returned(pieces, limit) if self._returned else 0
        lane = self._lanes.get(pieces[0][0].lane) if pieces else self._oldest_lane()
        while lane and taken < limit:
            job = lane[0]
            if job.ended:
                lane.popleft()
                continue
            first = job.next_item
            count = job.n_items - first
            if count > limit - taken:
                count = limit - taken
            else:
                lane.popleft()
            job.next_item = first + count
            pieces.append((job, first, count))
            taken += count
        for job, _, count in pieces:
            job.running += count
        self.items -= taken
        return pieces, taken

    def _take_alone(self, limit: int) -> Piece | None:
        while self._alone:
            job, first, count = self._alone.popleft()
            if job.ended:
                continue
            if count > limit:
                self._alone.appendleft((job, first + limit, count - limit))
                count = limit
            job.running += count
            self.items -= count
            return job, first, count
        return None

    def _take_returned(self, pieces: list[Piece], limit: int) -> int:
        taken = 0
        while self._returned and taken < limit:
            job, first, count = self._returned[0]
            if job.ended:
                self._returned.popleft()
                continue
            if pieces and job.lane != pieces[0][0].lane:
                break
            now = min(count, limit - taken)
            self._returned.popleft()
            if now < count:
                self._returned.appendleft((job, first + now, count - now))
            pieces.append((job, first, now))
            taken += now
        return taken

    def _oldest_lane(self) -> deque[Job] | None:
        if len(self._lanes) == 1:
            (lane,) = self._lanes.values()
            self._skip_ended(lane)
            return lane or None
        oldest: deque[Job] | None = None
        for key, lane in list(self._lanes.items()):
            self._skip_ended(lane)
            if not lane:
                del self._lanes[key]
            elif oldest is None or lane[0].admitted_s < oldest[0].admitted_s:
                oldest = lane
        return oldest

    def _skip_ended(self, lane: deque[Job]) -> None:
        while lane and lane[0].ended:
            lane.popleft()

    def _sweep(self) -> None:
        for key, lane in self._lanes.items():
            self._lanes[key] = deque(job for job in lane if not job.ended)
        self._returned = deque(p for p in self._returned if not p[0].ended)
        self._alone = deque(p for p in self._alone if not p[0].ended)
        self._dropped = 0

    def check(self) -> None:
        """Assert that `items` is the number of items that really wait."""
        waiting = sum(p[2] for p in (*self._returned, *self._alone) if not p[0].ended)
        for lane in self._lanes.values():
            waiting += sum(j.n_items - j.next_item for j in lane if not j.ended)
        assert waiting == self.items, (waiting, self.items)
