"""What happened to one request and when, for traces and logs; nothing of it exists unless somebody asks."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from partita.core.errors import RequestError
from partita.engine.request import Buffer, PartSink, Request, Shapes, Sink
from partita.machines.work import Batch
from partita.wire.messages import BatchDone

if TYPE_CHECKING:
    from partita.engine.instance import Instance
    from partita.engine.service import Service

OK, CANCELLED = "ok", "cancelled"
MAX_ID_CHARACTERS = 128


@dataclass(slots=True)
class Incoming:
    """What a protocol knows of a request beside its content."""

    protocol: str
    request_id: str = ""
    said_id: str = ""
    """What the next request's content says that its name is; it goes before `request_id`."""
    traceparent: str = ""
    """The W3C's header, as it came; so is `tracestate`."""
    tracestate: str = ""


INCOMING: ContextVar[Incoming | None] = ContextVar("partita_incoming", default=None)
"""The request that is being handed to the engine, where anybody observes requests."""


def is_request_id(given: str) -> bool:
    """Whether a client's name for a request may stand in logs and traces: it is short and can be printed."""
    return 0 < len(given) <= MAX_ID_CHARACTERS and given.isprintable()


def say_request_id(request_id: str) -> None:
    """Name the request that is submitted next by what its content says; it may say nothing, "".

    Where several share an `Incoming`, as those of a stream do, each must say so right before it is submitted:
    one that fails in between would leave its name to the next.
    """
    said = INCOMING.get()
    if said is not None:
        said.said_id = request_id if is_request_id(request_id) else ""


@dataclass(frozen=True, slots=True)
class Execution:
    """Some of a request's items in one batch. Times are monotonic, seconds."""

    model: str
    instance: int
    dispatched_s: float
    done_s: float
    infer_s: float
    items: int
    batch_items: int


@dataclass(slots=True, kw_only=True)
class Trail:
    """One request from its admission to its end. Times are monotonic, seconds."""

    incoming: Incoming
    request_id: str
    model: str
    version: str
    n_items: int
    arrived_s: float
    is_combined: bool
    """Whether several members' predictions are combined."""
    executions: list[Execution] = field(default_factory=list)
    outcome: str = ""
    """`OK`, `CANCELLED`, or the code of an error."""
    error: str = ""
    ended_s: float = 0.0


class Reporter(Protocol):
    """Makes something of trails."""

    def begin(self, trail: Trail) -> Any:
        """Take a request that has just come; returns what comes back with it, None = not wanted."""

    def report(self, begun: Any, trail: Trail) -> None:
        """Take a request that has ended."""


class RequestObserver:
    """Follows requests through the engine, for its reporters."""

    def __init__(self, reporters: Sequence[Reporter], now_s: Callable[[], float]) -> None:
        self._reporters = tuple(reporters)
        self._now_s = now_s

    def admitted(self, service: "Service", request: Request) -> None:
        """Follow a request that was just accepted, if it is of interest."""
        trail, begun = self._trail(service, request.n_items, request.arrived_s)
        if begun:
            request.watch = Watch(request.sink, trail, begun, self._now_s)
            request.sink = request.watch

    def refused(self, service: "Service", error: RequestError) -> None:
        """Report a request that was not accepted."""
        now_s = self._now_s()
        trail, begun = self._trail(service, 0, now_s)
        _end(trail, begun, now_s, error.code, str(error))

    def _trail(self, service: "Service", n_items: int, arrived_s: float) -> tuple[Trail, list["_Begun"]]:
        incoming = INCOMING.get() or Incoming("python")
        name, incoming.said_id = incoming.said_id or incoming.request_id or uuid4().hex, ""
        trail = Trail(
            incoming=incoming,
            request_id=name,
            model=service.name,
            version=service.version,
            n_items=n_items,
            arrived_s=arrived_s,
            is_combined=service.member.launch.runtime == "ensemble",
        )
        asked = ((reporter, reporter.begin(trail)) for reporter in self._reporters)
        return trail, [(reporter, ticket) for reporter, ticket in asked if ticket is not None]

    def executed(self, instance: "Instance", model: str, batch: Batch, done: BatchDone, now_s: float) -> None:
        """Note a batch that was executed, before its answers are handed on."""
        for job, _, count in batch.pieces:
            watch: Watch | None = job.owner.watch
            if watch is not None:
                watch.trail.executions.append(
                    Execution(
                        model,
                        instance.number,
                        batch.dispatched_s,
                        now_s,
                        done.infer_ns / 1e9,
                        count,
                        batch.items,
                    )
                )


_Begun = tuple[Reporter, Any]


class Watch:
    """Stands between a request and its `Sink`."""

    __slots__ = ("_begun", "_now_s", "_sink", "trail")

    def __init__(self, sink: Sink, trail: Trail, begun: list[_Begun], now_s: Callable[[], float]) -> None:
        self._sink = sink
        self._begun = begun
        self._now_s = now_s
        self.trail = trail

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:
        """Pass the answer on, and report."""
        now_s = self._now_s()
        self._sink.answered(request, outputs, shapes)
        _end(self.trail, self._begun, now_s, OK)

    def part(self, request: Request, data: bytes) -> None:
        """Pass a part of the answer on."""
        if isinstance(self._sink, PartSink):
            self._sink.part(request, data)

    def failed(self, request: Request, error: RequestError) -> None:
        """Pass the error on, and report."""
        now_s = self._now_s()
        self._sink.failed(request, error)
        _end(self.trail, self._begun, now_s, error.code, str(error))

    def cancelled(self) -> None:
        """Report that the client has gone."""
        _end(self.trail, self._begun, self._now_s(), CANCELLED)


def _end(trail: Trail, begun: list[_Begun], now_s: float, outcome: str, error: str = "") -> None:
    trail.ended_s, trail.outcome, trail.error = now_s, outcome, error
    for reporter, ticket in begun:
        reporter.report(ticket, trail)
