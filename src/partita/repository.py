"""Loading and unloading models while the server runs: the old version serves until the new one is ready."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import msgspec

from partita.archives.containers import SUFFIXES, manifest_of
from partita.archives.fetching import fetch
from partita.archives.folders import release
from partita.catalogue import Catalogue
from partita.core.errors import InvalidInput, LoadFailed, ModelUnavailable
from partita.core.topology import Topology
from partita.deploy import Profiler, cores_of, deployment_for
from partita.engine.engine import Deployment, Engine
from partita.engine.service import Service
from partita.protocols.oip.describe import index_state
from partita.protocols.repository import IndexEntry, LoadRequest
from partita.settings import InstanceSettings, ServerSettings
from partita.sources import ModelSource

log = logging.getLogger("partita")
T = TypeVar("T")


class _Fetched(NamedTuple):
    """An archive that was fetched, and the folder that goes with it."""

    place: Path
    folder: "TemporaryDirectory[str]"


class DiskRepository:
    """The models that a catalogue finds, on one engine. Everything but looking at the disk is on its loop."""

    def __init__(
        self,
        engine: Engine,
        catalogue: Catalogue,
        profiler: Profiler,
        loop: asyncio.AbstractEventLoop,
        topology: Callable[[], Topology],
    ) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._profiler = profiler
        self._loop = loop
        self._topology = topology
        self._locks: dict[str, asyncio.Lock] = {}
        """One change of a model at a time."""
        self._loading: dict[str, tuple[str, ...]] = {}
        """Versions that are being loaded, by model."""
        self._uploads: dict[str, TemporaryDirectory[str]] = {}
        """Files that clients sent for a model that is served."""
        self._fetched: dict[str, _Fetched] = {}
        """Archives that were fetched, by their URLs."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def _server(self) -> ServerSettings:
        return self._catalogue.settings.server

    async def index(self) -> list[IndexEntry]:
        """Return every model that is served, is being loaded, or lies on disk."""
        on_disk = await self._aside(self._catalogue.names)
        entries = {key: index_state(service) for key, service in self._engine.versions.items()}
        known = self._engine.services.keys() | self._loading.keys()
        rest = {name: versions for name, versions in on_disk.items() if name not in known}
        for models, state, reason in ((self._loading, "LOADING", ""), (rest, "UNAVAILABLE", "unloaded")):
            for name, versions in models.items():
                for version in versions:
                    entry = IndexEntry(name=name, version=version, state=state, reason=reason)
                    entries.setdefault((name, version), entry)
        return list(entries.values())

    async def identity(self, source: str) -> tuple[str, str]:
        """Return the name of its own and the version that a model would be loaded with.

        `source` is its name, an archive's file, or the URL of one. Raises `ModelNotFound` or `InvalidInput`.
        """
        found = await self._aside(self._found, source, {})
        is_named = found.is_archive and source.endswith(SUFFIXES)
        return (manifest_of(found.path).model.model_name if is_named else source), found.version

    async def load(self, name: str, request: LoadRequest) -> None:
        """Serve a model in the versions that its policy names, in place of those that are served.

        Raises `ModelNotFound`, `InvalidInput` or `LoadFailed`; what is served is then as it was.
        """
        await self._to_its_end(self._load(name, request))

    async def unload(self, name: str, version: str = "") -> None:
        """Serve a model, or one version of it, no longer; what it has taken is finished.

        Raises `ModelNotFound`.
        """
        await self._to_its_end(self._unload(name, version))

    async def close(self) -> None:
        """Give up what is being loaded. The engine ends the workers."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upload in self._uploads.values():
            upload.cleanup()
        self._uploads.clear()
        for source in list(self._fetched):
            await self.forget(source)

    async def forget(self, source: str) -> None:
        """Keep no longer what a URL gave; whoever asks for it next fetches it anew."""
        fetched = self._fetched.pop(source, None)
        if fetched is not None:
            await self._aside(fetched.folder.cleanup)

    async def _to_its_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, even if the client that asked for it does not wait."""
        return await asyncio.shield(self._in_background(change))

    def _in_background(self, change: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _aside(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call something that waits for a disk, in a thread that ends with it."""
        thread = ThreadPoolExecutor(1, "partita-repository")
        try:
            return await self._loop.run_in_executor(thread, call, *arguments)
        finally:
            thread.shutdown(wait=False)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _load(self, name: str, request: LoadRequest) -> None:
        async with self._lock(name):
            upload = await self._aside(_written, name, request) if request.files else None
            try:
                source = await self._aside(self._find, name, request, upload)
                replaced = await self._replace(source, request)
            except BaseException:
                if upload is not None:
                    upload.cleanup()
                raise
            old_upload = None if request.is_beside else self._uploads.pop(name, None)
            if upload is not None:
                self._uploads[name] = upload
        self._in_background(self._retire(replaced, old_upload))

    async def _retire(
        self, replaced: Sequence[Service], upload: "TemporaryDirectory[str] | None" = None
    ) -> None:
        try:
            await asyncio.gather(*(self._end(service, self._server.drain_s) for service in replaced))
        finally:
            if upload is not None:
                upload.cleanup()

    async def _end(self, service: Service, grace_s: float) -> None:
        await self._engine.discard(service, grace_s)
        await self._release(service)

    async def _release(self, service: Service) -> None:
        """Let go of the folder of a model that is gone, if it is one of an archive."""
        await self._aside(release, Path(service.member.launch.path))

    def _find(self, name: str, request: LoadRequest, upload: "TemporaryDirectory[str] | None") -> ModelSource:
        if upload is None:
            return self._found(request.source or name, request.settings).renamed(name)
        return self._catalogue.at(Path(upload.name) / name, name, {**request.settings, "path": None})

    def _found(self, source: str, settings: Mapping[str, Any]) -> ModelSource:
        """Return the model of a name, an archive's file or URL. Raises `ModelNotFound` or `InvalidInput`."""
        if "://" in source:
            return self._at_url(source, settings)
        return self._catalogue.find(source, settings)

    def _at_url(self, url: str, settings: Mapping[str, Any]) -> ModelSource:
        """Return the model of an archive's URL; what is none is not kept."""
        known = self._fetched.get(url)
        if known is not None:
            return self._catalogue.at(known.place, "", settings)
        folder = TemporaryDirectory(prefix="partita-")
        try:
            place = fetch(url, self._server.allowed_urls, Path(folder.name))
            found = self._catalogue.at(place, "", settings)
        except BaseException:
            folder.cleanup()
            raise
        kept = self._fetched.setdefault(url, _Fetched(place, folder))
        if kept.folder is folder:
            return found
        folder.cleanup()  # another thread was earlier
        return self._catalogue.at(kept.place, "", settings)

    async def _replace(self, source: ModelSource, request: LoadRequest) -> list[Service]:
        """Serve a model once all its versions are ready; returns the services that these replace."""
        name = source.name
        cores, is_alone = self._cores_for(name), self._engine.services.keys() <= {name}
        self._loading[name] = tuple(version.version for version in source.served_versions)
        prepared: list[Service] = []
        try:
            for version in source.served_versions:
                asked = _by_hand(version, request.workers, len(cores)) if request.workers else version
                deployment = await self._aside(self._deployment, asked, cores, is_alone)
                prepared.append(self._engine.prepare(deployment))
                with self._engine.loading_beside(prepared[-1]):
                    await prepared[-1].until_ready()
        except BaseException as error:
            for service in prepared:
                service.abandon("it could not be loaded")
                await self._end(service, 0.0)
            if isinstance(error, ModelUnavailable):
                raise LoadFailed(str(error)) from None
            raise
        finally:
            self._loading.pop(name, None)
        for service in prepared:
            log.info("%s: version %s serves, plan %s", name, service.version, service.plan)
        return self._engine.publish(prepared, beside=request.is_beside)

    def _deployment(self, source: ModelSource, cores: tuple[int, ...], is_alone: bool) -> Deployment:
        topology = self._topology()
        return deployment_for(source, self._server, topology, cores, self._profiler, is_alone=is_alone)

    def _cores_for(self, name: str) -> tuple[int, ...]:
        """Return the cores of the model that is replaced; for a new one the least used, an even share of all.

        They are all that its plans may use, also those that the plan in force leaves free.
        They are shared with whoever has them: under the leases nobody executes on a core that is in use.
        """
        allowed = cores_of(self._server, self._topology(), strict=False)
        served = self._engine.services.get(name)
        if served is not None:
            own = self._engine.deployment(served).cores or (served.plan.placed_on if served.plan else ())
            if own:
                return tuple(core for core in own if core in allowed) or own
        users = dict.fromkeys(allowed, 0)
        for service in self._engine.services.values():  # whose other versions are on the same cores
            for core in service.plan.placed_on if service.plan else ():
                users[core] = users.get(core, 0) + 1
        share = max(1, len(allowed) // (len(self._engine.services) + 1))
        return tuple(sorted(sorted(allowed, key=lambda core: (users[core], core))[:share]))

    async def _unload(self, name: str, version: str) -> None:
        async with self._lock(name):
            gone = self._engine.withdraw(name, version)
            await self._retire(gone)
            if name not in self._engine.services and (upload := self._uploads.pop(name, None)) is not None:
                upload.cleanup()


def _by_hand(source: ModelSource, workers: int, cores: int) -> ModelSource:
    """Return a model that is served by this many equal instances, at most one for each core."""
    count = min(workers, cores)
    one = InstanceSettings(threads=cores // count, batch=source.max_batch)
    settings = msgspec.structs.replace(source.settings, instances=(one,) * count)
    return replace(source, settings=settings)


def _written(name: str, request: LoadRequest) -> "TemporaryDirectory[str]":
    """Return a folder of our own with the files that a client sent as a model folder of this name."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise InvalidInput(f"{name!r} is no name for a model")
    folder = TemporaryDirectory(prefix="partita-")
    for file, content in request.files.items():
        path = Path(folder.name) / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
