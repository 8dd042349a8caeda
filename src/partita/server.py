"""The composition root of ``partita serve``."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from partita.catalogue import Catalogue
from partita.deploy import deployments
from partita.embedded import Server
from partita.engine.engine import Deployment
from partita.head import Head
from partita.key_file import KeyFile
from partita.logs import set_up_logs
from partita.profiles import saved_or_measured
from partita.settings import Settings
from partita.sources import ModelSource
from partita.system.cpulists import parse_cpu_list
from partita.system.cpus import pin, read_topology
from partita.system.pid_files import PidFile

log = logging.getLogger("partita")

GC_THRESHOLDS = (50_000, 20, 50)
"""Requests leave no cycles behind, so looking for some every 700 objects is time lost."""


def serve(
    settings: Settings,
    sources: Sequence[ModelSource],
    *,
    catalogue: Catalogue | None = None,
    as_json: bool = False,
    pid_file: PidFile | None = None,
) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code.

    The first signal drains within ``drain_s``, a second one ends at once. With `as_json` one document that
    names models, plans and ports is printed on stdout as soon as everything can answer. A `pid_file` names
    this process while its ports are open.
    """
    set_up_logs(settings.server.log_format)
    server = msgspec.structs.replace(settings.server, tune=settings.server.tune or "background")
    topology = read_topology()
    planned = deployments(sources, server, topology, saved_or_measured(server))
    if server.head_cores:
        pin(parse_cpu_list(server.head_cores))
    for deployment in planned:
        log.info("%s: plan %s on %s", deployment.name, deployment.plan, topology)
    head = partial(Head, server, catalogue=catalogue, sources=sources, topology=topology)
    return uvloop.run(_serve(head, planned, pid_file, as_json=as_json))


async def _serve(
    make_head: Callable[..., Head], planned: list[Deployment], pid_file: PidFile | None, *, as_json: bool
) -> int:
    loop = asyncio.get_running_loop()
    head = make_head(loop=loop)
    server = head.settings
    keys = head.access.keys if server.management is not None else None
    key_file = KeyFile(Path(server.key_file), keys) if keys is not None else None
    if key_file is not None:
        key_file.start()
    signals = Signals(loop)
    opened = None if pid_file is None else pid_file.write
    starting = asyncio.ensure_future(head.start(planned, opened=opened))
    asked_to_stop = asyncio.ensure_future(signals.first.wait())
    await asyncio.wait({starting, asked_to_stop}, return_when=asyncio.FIRST_COMPLETED)
    asked_to_stop.cancel()
    try:
        if starting.done():
            await starting
            gc.collect()
            gc.set_threshold(*GC_THRESHOLDS)
            gc.freeze()  # what start-up made lives as long as the server: no collection need walk it
            _announce(head, planned, as_json=as_json)
            await signals.first.wait()
            log.info("draining for at most %g s", server.drain_s)
        elif starting.cancel():  # a worker that loads would be waited for
            _abandon(head, "it was told to while it started")
    finally:
        is_serving = starting.done() and not starting.cancelled() and starting.exception() is None
        await _stop(head, server.drain_s if is_serving else 0.0, signals)
        if key_file is not None:
            key_file.remove()
        if pid_file is not None:
            pid_file.remove()
    return 0


class Signals:
    """SIGTERM and SIGINT as events: the first asks to drain, the second to end at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def _stop(head: Head, grace_s: float, signals: Signals) -> None:
    stopping = asyncio.ensure_future(head.stop(grace_s))
    impatient = asyncio.ensure_future(signals.second.wait())
    await asyncio.wait({stopping, impatient}, return_when=asyncio.FIRST_COMPLETED)
    if impatient.done():
        _abandon(head, "a second signal came")
    impatient.cancel()
    await stopping


def _abandon(head: Head, reason: str) -> None:
    for service in head.engine.everything:
        service.abandon(reason)


def _announce(head: Head, planned: list[Deployment], *, as_json: bool) -> None:
    for name, address in head.ports.items():
        log.info("%s on %s%s", name, "" if name.startswith("grpc") else f"{head.scheme}://", address)
    if as_json:
        document = {
            "ports": {name: str(address) for name, address in head.ports.items()},
            "models": [{"name": d.name, "version": d.version, "plan": str(d.plan)} for d in planned],
        }
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        sys.stdout.flush()


__all__ = ["Server", "serve"]
