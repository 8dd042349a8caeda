"""Drives a real engine with real workers, as a protocol does, for tests."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray

from partita.core.errors import RequestError
from partita.core.plan import InstanceSpec, Plan
from partita.engine.engine import Deployment, Engine
from partita.engine.instance import Instance, ModelLaunch
from partita.engine.request import Buffer, Layout, Request, Shapes
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.machines.worker_life import RestartRules

LIMIT_S = 30.0
QUICK = RestartRules(first_backoff_s=0.01, longest_backoff_s=0.1, max_failed_starts=3)

TRICKY = '''
import os, time
import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))

class Tricky:
    """y = 2 x + 1. The second number of an item says what else to do with the batch that it is in."""

    inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
    outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}

    def infer(self, batch):
        x = batch["x"]
        with open(os.path.join(FOLDER, "log"), "a") as log:
            log.write(" ".join(str(int(v)) for v in x[:, 0]) + "\\n")
        what = set(x[:, 1].astype(int).tolist())
        if RAISE in what:
            raise ValueError("bad item")
        if EXIT in what:
            os._exit(3)
        if HANG in what:
            time.sleep(3600)
        if HOLD in what:
            open(os.path.join(FOLDER, "gate")).read()
        return {"y": 2 * x + 1}
'''
RAISE, EXIT, HANG, HOLD = 1, 2, 3, 4
SOCKETS = """
import stat

def sockets():
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                yield fd
        except OSError:
            pass
"""
"""To add to a model's file that imports `os`: finds what its worker speaks with the head over."""
XY = Layout(None, (8,))
"""How items of `Tricky` lie in X."""


class Asked:
    """One request; the engine's `Sink` for it. Await `result`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.future: asyncio.Future[tuple[list[bytes], Shapes]] = asyncio.get_running_loop().create_future()
        self.request: Request | None = None
        self.outcomes = 0

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:
        self.outcomes += 1
        self.future.set_result(([bytes(output) for output in outputs], shapes))

    def failed(self, request: Request, error: RequestError) -> None:
        self.outcomes += 1
        self.future.set_exception(error)

    async def result(self) -> list[NDArray[Any]]:
        outputs, shapes = await asyncio.wait_for(self.future, LIMIT_S)
        specs = self.service.signature.outputs
        return [
            np.frombuffer(data, spec.datatype.numpy).reshape(shape)
            for data, spec, shape in zip(outputs, specs, shapes, strict=True)
        ]

    async def error(self) -> RequestError:
        done = await asyncio.wait_for(asyncio.gather(self.future, return_exceptions=True), LIMIT_S)
        assert isinstance(done[0], RequestError), done
        return done[0]


def ask(service: Service, *arrays: NDArray[Any], layout: Layout = XY, **more: Any) -> Asked:
    """Submit one request of these inputs, batch axis first."""
    asked = Asked(service)
    asked.request = service.submit([a.tobytes() for a in arrays], len(arrays[0]), layout, asked, **more)
    return asked


def xy(*values: int, what: int = 0) -> NDArray[np.float32]:
    """Items of `Tricky`: these numbers, and what to do."""
    return np.array([[value, what] for value in values], dtype=np.float32)


def tricky(folder: Path) -> ModelLaunch:
    """Write `Tricky` into a folder and return how it is launched."""
    folder.mkdir(exist_ok=True)
    constants = f"RAISE, EXIT, HANG, HOLD = {RAISE}, {EXIT}, {HANG}, {HOLD}\n"
    return python_model(folder, constants + dedent(TRICKY), "Tricky")


def python_model(folder: Path, source: str, cls: str, name: str = "tricky") -> ModelLaunch:
    file = folder / "model.py"
    file.write_text(dedent(source))
    return ModelLaunch(name=name, path=f"{file}:{cls}", runtime="python")


def executed(folder: Path) -> list[list[int]]:
    """Return what `Tricky` executed, warm-up left out: the first numbers of each batch's items."""
    lines = (folder / "log").read_text().splitlines() if (folder / "log").exists() else []
    return [[int(v) for v in line.split()] for line in lines if set(line.split()) != {"0"}]


def plan(*batches: int, threads: int = 1, cores: Sequence[tuple[int, ...]] | None = None) -> Plan:
    """Return a plan of instances with these b, on no core in particular unless told."""
    places: Sequence[tuple[int, ...]] = cores if cores is not None else [()] * len(batches)
    instances = tuple(
        InstanceSpec(threads=threads, batch=b, cores=c) for b, c in zip(batches, places, strict=True)
    )
    return Plan(instances=instances, cores=threads * len(batches), batch=sum(batches))


@asynccontextmanager
async def engine(rules: RestartRules = QUICK, *, grace_s: float = 10.0) -> AsyncIterator[Engine]:
    """Run an engine; afterwards every law is checked and everything is given back."""
    made = Engine(asyncio.get_running_loop(), restart_rules=rules)
    try:
        yield made
        made.check()
    finally:
        services = list(made.services.values())
        await made.stop(grace_s)
    for service in services:
        assert service.statistics.in_flight() == 0
        service.member.dispatcher.check()
    assert made.leases.executing_cores() == []


def add(made: Engine, launch: ModelLaunch, plan: Plan, **more: Any) -> Service:
    """Start serving; keywords are those of `BatchingRules` and `ServiceSettings`."""
    limits = {key: more.pop(key) for key in ("deadline_s", "arena_bytes") if key in more}
    settings = ServiceSettings(rules=BatchingRules(**more), **limits)
    return made.add(Deployment(name=launch.name, version="1", launch=launch, settings=settings, plan=plan))


@asynccontextmanager
async def served(launch: ModelLaunch, *batches: int, **more: Any) -> AsyncIterator[Service]:
    """Serve one model with instances of these b, ready to be asked."""
    async with engine() as made:
        service = add(made, launch, plan(*batches), **more)
        await service.until_ready()
        yield service
        await until(lambda: service.member.dispatcher.running_items == 0)
        assert service.arena.owned_items() == 0, "all item memory is back"
        service.check()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine on the loop that the server runs on."""
    uvloop.run(asyncio.wait_for(main(), 90))


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait for a condition that the loop's other callbacks bring about."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.002)


async def gate_reached(folder: Path) -> int:
    """Wait until a batch with `HOLD` executes; closing what is returned lets it go on."""
    fds: list[int] = []

    def opened() -> bool:
        with contextlib.suppress(OSError):  # nobody reads yet
            fds.append(os.open(folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
        return bool(fds)

    await until(opened)
    return fds[0]


def make_gate(folder: Path) -> None:
    os.mkfifo(folder / "gate")


def workers_among(pids: Iterable[int]) -> list[int]:
    """Return those of these processes that live and are neither spares nor who makes spares."""
    return [pid for pid in pids if _words(pid) and not any(w.endswith("/spares.py") for w in _words(pid))]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:  # it has just ended
        return []


def only_instance(service: Service) -> Instance:
    (instance,) = service.member.instances.values()
    return instance


async def all_errors(asked: Sequence[Asked]) -> list[str | None]:
    """Return each request's error code, None for an answer."""
    futures: list[Awaitable[Any]] = [a.future for a in asked]
    done = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), LIMIT_S)
    return [d.code if isinstance(d, RequestError) else None for d in done]
