"""The two ways to load a server: closed (each client waits for its answer) and open (clients come anyway)."""

import asyncio
import time
from array import array
from collections import Counter, deque
from itertools import cycle

import numpy as np

from partita.loadgen.connection import Connection
from partita.loadgen.payload import Payload
from partita.loadgen.result import LoadResult, summarize
from partita.loadgen.spec import Arrivals, LoadSpec
from partita.loadgen.target import Target
from partita.loadgen.timer import PreciseTimer

_MOST_RECONNECTS = 1000
_OPEN_AT_FIRST = 16
UNANSWERED = "unanswered"


class Loop:
    """One run: `connect`, `start`, `drain`, `result`, `close`, in this order.

    What both kinds share: connections, the clock of the window, and the record of what ended how.
    """

    def __init__(
        self, target: Target, payload: Payload, spec: LoadSpec, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.answered = 0
        self._target = target
        self._payload = payload
        self._requests = cycle(payload.requests)
        self._spec = spec
        self._loop = loop
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._reconnects = 0
        self._started_s = 0.0
        self._open_s = 0.0
        self._closed_s = 0.0
        self._completed = 0
        self._latencies_s = array("d")
        self._errors: Counter[str] = Counter()
        self._stopping = False
        self._idle = asyncio.Event()

    async def connect(self) -> None:
        """Open the first connections; raises `OSError`."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to send; the warm-up begins now."""
        raise NotImplementedError

    async def drain(self, timeout_s: float) -> None:
        """Wait for the answers that are still due, no longer than this."""
        raise NotImplementedError

    def result(self) -> LoadResult:
        """Return the figures of the window."""
        raise NotImplementedError

    def elapsed_s(self) -> float:
        """Return the seconds since the start, 0 before."""
        return time.perf_counter() - self._started_s if self._started_s else 0.0

    async def close(self) -> None:
        """Close all connections."""
        self._stopping = True
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0)  # let the transports close their sockets

    def _begin(self) -> None:
        self._started_s = time.perf_counter()
        self._open_s = self._started_s + self._spec.warmup_s
        self._closed_s = self._open_s + self._spec.duration_s

    async def _open(self) -> Connection:
        address = self._target.address
        _, connection = await self._loop.create_connection(
            lambda: Connection(self._ended), address.host, address.port
        )
        self._connections.add(connection)
        return connection

    def _reopen(self) -> None:
        """Replace a connection that the server closed; a server that closes all of them is given up."""
        self._reconnects += 1
        if not self._stopping and self._reconnects <= _MOST_RECONNECTS:
            task = self._loop.create_task(self._try_open())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _try_open(self) -> None:
        try:
            self._ready(await self._open())
        except OSError as error:
            self._errors[f"connect: {error.strerror or type(error).__name__}"] += 1
            self._reopen_later()

    def _reopen_later(self) -> None:
        self._loop.call_later(0.1, self._reopen)

    def _ready(self, connection: Connection) -> None:
        raise NotImplementedError

    def _ended(self, connection: Connection, status: str) -> None:
        raise NotImplementedError

    async def _wait_idle(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass


class ClosedLoop(Loop):
    """Holds `concurrency` requests in flight; a request counts if it was answered in the window."""

    async def connect(self) -> None:
        """Open the first connections; raises `OSError`."""
        assert self._spec.concurrency is not None
        await asyncio.gather(*(self._open() for _ in range(self._spec.concurrency)))

    def start(self) -> None:
        """Begin to send; the warm-up begins now."""
        self._begin()
        for connection in self._connections:
            self._ready(connection)

    async def drain(self, timeout_s: float) -> None:
        """Wait for the answers that are still due, no longer than this."""
        self._stopping = True
        self._check_idle()
        await self._wait_idle(timeout_s)
        stuck = sum(connection.busy for connection in self._connections)
        if stuck:
            self._errors[UNANSWERED] += stuck

    def result(self) -> LoadResult:
        """Return the figures of the window."""
        return summarize(
            np.frombuffer(self._latencies_s, np.float64),
            mode="closed",
            concurrency=self._spec.concurrency,
            rate=None,
            window_s=self._spec.duration_s,
            completed=self._completed,
            items=self._payload.items,
            errors=self._errors,
        )

    def _ready(self, connection: Connection) -> None:
        if not self._stopping:
            connection.send(next(self._requests), time.perf_counter())

    def _ended(self, connection: Connection, status: str) -> None:
        now_s = time.perf_counter()
        self.answered += 1
        if self._open_s <= now_s < self._closed_s:
            if status == "200":
                self._completed += 1
                self._latencies_s.append(now_s - connection.tag)
            else:
                self._errors[status] += 1
        if not connection.is_open:
            self._connections.discard(connection)
            self._reopen()
        elif not self._stopping:
            connection.send(next(self._requests), now_s)
        if self._stopping:
            self._check_idle()

    def _check_idle(self) -> None:
        if not any(connection.busy for connection in self._connections):
            self._idle.set()


class OpenLoop(Loop):
    """Sends at given times, whatever comes back; a request counts if it was meant for the window."""

    def __init__(
        self, target: Target, payload: Payload, spec: LoadSpec, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(target, payload, spec, loop)
        assert spec.rate is not None
        self._plan = iter(arrival_times(spec.rate, spec.arrivals, spec.warmup_s + spec.duration_s, spec.seed))
        self._next: float | None = None
        self._due: deque[float] = deque()
        self._free: list[Connection] = []
        self._send_delays_s = array("d")
        self._timer: PreciseTimer | None = None

    async def connect(self) -> None:
        """Open the first connections; raises `OSError`."""
        count = min(_OPEN_AT_FIRST, self._spec.max_connections)
        self._free = list(await asyncio.gather(*(self._open() for _ in range(count))))

    def start(self) -> None:
        """Begin to send; the warm-up begins now."""
        self._timer = PreciseTimer(self._loop, self._tick)
        self._begin()
        self._next = next(self._plan, None)
        self._tick()

    async def drain(self, timeout_s: float) -> None:
        """Wait for the answers that are still due, no longer than this."""
        self._check_idle()
        await self._wait_idle(timeout_s)
        waiting = [connection.tag for connection in self._connections if connection.busy]
        self._errors[UNANSWERED] += sum(at_s >= self._open_s for at_s in (*waiting, *self._due))
        self._errors += Counter()  # drop what counts zero

    async def close(self) -> None:
        """Close all connections."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        await super().close()

    def result(self) -> LoadResult:
        """Return the figures of the window."""
        return summarize(
            np.frombuffer(self._latencies_s, np.float64),
            mode="open",
            concurrency=None,
            rate=self._spec.rate,
            window_s=self._spec.duration_s,
            completed=self._completed,
            items=self._payload.items,
            errors=self._errors,
            send_delays_s=np.frombuffer(self._send_delays_s, np.float64),
        )

    def _tick(self) -> None:
        """Send all that is due, and set the timer for the next."""
        now_s = time.perf_counter()
        while self._next is not None and (due_s := self._started_s + self._next) <= now_s:
            if due_s >= self._open_s:
                self._send_delays_s.append(now_s - due_s)
            self._due.append(due_s)
            self._next = next(self._plan, None)
        self._send_due()
        if self._next is not None and self._timer is not None:
            self._timer.set(self._started_s + self._next - time.perf_counter())

    def _send_due(self) -> None:
        while self._due and self._free:
            connection = self._free.pop()
            if connection.is_open:
                connection.send(next(self._requests), self._due.popleft())
            else:
                self._connections.discard(connection)
        room = self._spec.max_connections - len(self._connections) - len(self._opening)
        for _ in range(min(room, len(self._due) - len(self._opening))):
            self._reopen()
            self._reconnects -= 1  # the first of its kind, not a replacement

    def _ready(self, connection: Connection) -> None:
        self._free.append(connection)
        self._send_due()

    def _ended(self, connection: Connection, status: str) -> None:
        now_s = time.perf_counter()
        self.answered += 1
        if connection.tag >= self._open_s:
            self._completed += status == "200" and now_s < self._closed_s
            if status == "200":
                self._latencies_s.append(now_s - connection.tag)
            else:
                self._errors[status] += 1
        if connection.is_open:
            self._free.append(connection)
        else:
            self._connections.discard(connection)
        if self._due:
            self._send_due()
        if self._next is None:
            self._check_idle()

    def _check_idle(self) -> None:
        if self._next is None and not self._due and not any(c.busy for c in self._connections):
            self._idle.set()


def arrival_times(rate: float, arrivals: Arrivals, duration_s: float, seed: int) -> list[float]:
    """Return the times to send at, seconds from the start, ascending and below `duration_s`."""
    if arrivals is Arrivals.CONSTANT:
        return [index / rate for index in range(int(np.ceil(duration_s * rate)))]
    rng = np.random.default_rng(seed)
    count = int(duration_s * rate + 10 * (duration_s * rate) ** 0.5 + 10)  # ten standard deviations above
    times = np.cumsum(rng.exponential(1.0 / rate, count))
    return [float(t) for t in times[times < duration_s]]
