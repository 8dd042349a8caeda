"""Follows the cores that the process may use: affinity and control groups may change while it serves."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from partita.aside import Aside
from partita.core.errors import PartitaError
from partita.core.topology import Topology
from partita.deploy import cores_of
from partita.settings import ServerSettings
from partita.sharing import CoreSharing
from partita.system.cpus import format_cores, read_topology

log = logging.getLogger("partita")

LOOK_S = 10.0
"""How often the system is asked."""


class CoreWatch:
    """Asks the system now and then, and has the cores divided anew when the answer has changed."""

    def __init__(
        self,
        sharing: CoreSharing,
        loop: asyncio.AbstractEventLoop,
        settings: ServerSettings,
        *,
        first: Topology | None = None,
        read: Callable[[], Topology] = read_topology,
        look_s: float = LOOK_S,
    ) -> None:
        self._sharing = sharing
        self._loop = loop
        self._settings = settings
        self._read = read
        self._look_s = look_s
        self._first = first or read()  # before the head was pinned
        self._cores = cores_of(settings, self._first)
        self._aside = Aside(self._loop, "cores")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._aside.start()
        self._task = self._loop.create_task(self._watch())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._aside.stop()

    async def _watch(self) -> None:
        """Look for ever: what goes wrong once must not end it, since nobody would notice."""
        while True:
            try:
                await self._look()
            except PartitaError as error:
                log.warning("the cores could not be looked at: %s", error)
            except Exception:
                log.exception("the cores could not be looked at; again in %g s", self._look_s)
            await asyncio.sleep(self._look_s)

    async def _look(self) -> None:
        topology = await self._aside.run(self.topology)
        cores = cores_of(self._settings, topology, strict=False)
        if cores and cores != self._cores:
            log.info("cores %s may be used now, not %s", format_cores(cores), format_cores(self._cores))
            self._cores = cores
            self._sharing.cores_changed(cores, topology)

    def topology(self) -> Topology:
        """Return the machine as it is now, without what we did to ourselves: a head on its own cores sees
        only those."""
        topology = self._read()
        return topology if not self._settings.head_cores else replace(topology, cpus=self._first.cpus)
