"""What TorchServe's management API does, whichever protocol asks for it."""

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from partita.core.errors import InvalidRequest, ModelNotFound, PartitaError
from partita.core.versions import version_order
from partita.engine.engine import Engine
from partita.engine.service import Service
from partita.protocols.repository import LoadRequest, Repository
from partita.protocols.torchserve.archives import asked_archive, document_of, is_archive
from partita.protocols.torchserve.describe import describe, parked, url_of
from partita.protocols.torchserve.predictions import Prediction, find_service
from partita.protocols.torchserve.registry import Registered, Registry, planned_workers
from partita.protocols.torchserve.replies import Conflict, DefaultVersion, MethodNotAllowed

log = logging.getLogger(__name__)

LARGEST = 10**9
ARCHIVES = (".mar", ".tar.gz", ".tgz")
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
UPDATING = "Processing worker updates..."
SCALING = "Workers scaling in progress..."
RUNTIMES = ("python", "python3")
ALL = "all"
"""Names every version of a model where models are described, and nowhere else."""
SETTINGS = {
    "batch_size": ("max_batch", int, 1, 65536),
    "max_batch_delay": ("batch_timeout_ms", float, 0, LARGEST),
    "response_timeout": ("execution_limit_s", float, 1, LARGEST),
    "startup_timeout": ("load_limit_s", float, 1, LARGEST),
}
"""Parameters of a registration: the key of ``[model.NAME]`` that each stands for, type, least, most."""
Given = Mapping[str, str]
"""Parameters as text."""
Answer = tuple[int, str]
"""HTTP status and text."""


class TorchServeOperations:
    """The API's operations over one engine and one repository. All raise `PartitaError`."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository,
        registered: Registry,
        *,
        model_api: bool,
    ) -> None:
        self._engine = engine
        self._repository = repository
        self._has_model_api = model_api
        """Whether models may be registered and unregistered."""
        self._registered = registered
        self._arriving: set[tuple[str, str]] = set()
        """Names and versions that are registered, and are being loaded for the first time."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def _names(self) -> list[str]:
        return sorted({*self._engine.services, *self._registered})

    def page(self, given: Given) -> dict[str, Any]:
        """Return one page of the models."""
        limit = _whole(given, "limit", 100, least=1)
        first = _whole(given, "next_page_token", 0, least=0)
        names = self._names()
        document: dict[str, Any] = {
            "models": [{"modelName": n, "modelUrl": self._url(n)} for n in names[first : first + limit]]
        }
        if first + limit < len(names):
            document = {"nextPageToken": str(first + limit), **document}
        return document

    def descriptions(self, name: str, version: str) -> list[dict[str, Any]]:
        """Return what the version that is the default is, or this one, or ``all``."""
        known = self._registered.get(name, {})
        served = self._engine.all_versions(name)
        waiting = known.keys() - {service.version for service in served}
        if version == ALL:
            chosen = served
        elif version in waiting or (not served and not version and waiting):
            waiting, chosen = {version or max(waiting, key=version_order)}, []
        else:
            waiting, chosen = set(), [find_service(self._engine, name, version)]
        if not chosen and not waiting:
            raise ModelNotFound(f"Model not found: {name}")
        return [
            *(describe(one, self._limits(one, known.get(one.version))) for one in chosen),
            *(parked(name, one, known[one].request) for one in sorted(waiting, key=version_order)),
        ]

    def readiness(self, name: str) -> dict[str, Any]:
        """Return whether a model's default version can answer; one without workers cannot."""
        self.descriptions(name, "")  # raises for what is not there
        service = self._engine.services.get(name)
        return {"name": name, "ready": service is not None and service.is_ready}

    def _url(self, name: str) -> str:
        """Return what a model came from: an archive's file or URL, its name where it is none."""
        service = self._engine.services.get(name)
        if service is not None:
            return url_of(service)
        return next((known.request.source or name for known in self._registered.get(name, {}).values()), name)

    def _limits(self, service: Service, known: Registered | None) -> tuple[int, int]:
        """Return the least and most workers that a model may have; where nobody says, those that it has."""
        if known is not None and known.limits is not None:
            return known.limits
        count = planned_workers(service)
        least, most = self._engine.deployment(service).workers
        return least or count, most or count

    async def customized(self, name: str, version: str) -> list[dict[str, Any]]:
        """Return what a model is, with what its handler says of itself."""
        described = self.descriptions(name, version)
        for entry in described:
            service = self._engine.versions.get((name, entry["modelVersion"]))
            if service is not None and is_archive(service):
                asked = asked_archive(service, "describe", (), [("describe", "True")])
                answer = await Prediction(service, asked).values()
                entry["customizedMetadata"] = document_of(answer)
        return described

    # --- changing ---------------------------------------------------------------------------------

    async def register(self, given: Given) -> Answer:
        """Make a model known, and serve it if it is to have workers at once."""
        if not self._has_model_api:
            raise MethodNotAllowed()
        source = _source(given.get("url", ""))
        if (runtime := given.get("runtime", RUNTIMES[0])).lower() not in RUNTIMES:
            raise InvalidRequest(f"Invalid RuntimeType value: {runtime[:40]}")
        own_name, version = await self._repository.identity(source)
        name = given.get("model_name") or own_name
        if not _NAME.match(name):
            raise InvalidRequest(f"model_name {name[:80]!r} is no name for a model")
        if version in self._versions(name):
            raise Conflict(f"Model version {version} is already registered for model {name}")
        settings = _settings(given)
        if given.get("handler"):
            if not source.endswith(ARCHIVES):
                raise InvalidRequest("handler: only to an archive another handler can be given")
            settings["options"] = {"handler": given["handler"]}
        workers = _whole(given, "initial_workers", 0, least=0)
        load = LoadRequest(settings=settings, source=source, workers=workers or None, is_beside=True)
        known = Registered(load, version, (workers, workers) if workers else None)
        # From here on nobody else may register it, and nothing was awaited since it was looked for.
        self._registered.setdefault(name, {})[version] = known
        if not workers:
            text = (
                f'Model "{name}" Version: {version} registered with 0 initial workers. '
                "Use scale workers API to add workers for the model."
            )
            return 200, text
        self._arriving.add((name, version))
        if _flag(given, "synchronous", default=True):
            await asyncio.shield(self._started(self._arrive(name, known)))  # a client may leave meanwhile
            text = f'Model "{name}" Version: {version} registered with {workers} initial workers'
            return self._done(name, version, text)
        self._in_background(self._arrive(name, known))
        return 202, UPDATING

    async def _arrive(self, name: str, known: Registered) -> None:
        """Load what was just registered; it is no longer known if that fails."""
        try:
            await self._repository.load(name, known.request)
        except BaseException:
            await self._forget(name, known.version)
            raise
        finally:
            self._arriving.discard((name, known.version))

    async def _forget(self, name: str, version: str) -> None:
        known = self._registered.get(name, {})
        gone = known.pop(version, None)
        if not known:
            self._registered.pop(name, None)
        if gone is not None and gone.request.source not in self._sources():
            await self._repository.forget(gone.request.source)

    def _sources(self) -> set[str]:
        return {one.request.source for known in self._registered.values() for one in known.values()}

    def _one(self, name: str, version: str) -> str:
        """Return the version that a change means. Raises `PartitaError` for what cannot be changed now."""
        if version == ALL:
            raise InvalidRequest(f"version {ALL!r}: only one version at a time can be changed; name it")
        which: str = self.descriptions(name, version)[0]["modelVersion"]  # raises for what is not there
        if (name, which) in self._arriving:
            raise Conflict(f"Model version {which} of model {name} is being registered; try again later")
        return which

    def _versions(self, name: str) -> set[str]:
        """Return the versions of a model that are known, whether they have workers or not."""
        served = {service.version for service in self._engine.all_versions(name)}
        return served | self._registered.get(name, {}).keys()

    async def scale(self, name: str, version: str, given: Given) -> Answer:
        """Set the limits of a model's workers, and bring their number between them."""
        least = _whole(given, "min_worker", 1, least=0)
        most = _whole(given, "max_worker", least, least=0)
        if most < least:
            raise InvalidRequest("max_worker cannot be less than min_worker.")
        which = self._one(name, version)
        change = self._scaled(name, which, least, most)
        if not _flag(given, "synchronous", default=False):
            self._in_background(change)
            return 202, UPDATING
        count = await change
        said = f", version: {version}" if version else ""
        return self._done(name, which, f"Workers scaled to {count} for model: {name}{said}")

    def _done(self, name: str, version: str, text: str) -> Answer:
        """Return what is said of a change that was waited for: some of the workers may not be there yet."""
        service = self._engine.versions.get((name, version))
        if service is not None and service.member.ready_instances < planned_workers(service):
            return 206, SCALING
        return 200, text

    async def _scaled(self, name: str, version: str, least: int, most: int) -> int:
        """Bring a version's workers between these limits; returns how many there are."""
        known = self._registered.get(name, {}).get(version) or Registered(LoadRequest(), version)
        now = self._workers(name, version)
        wanted = min(max(now, least), most)
        is_one_of_many = len(self._versions(name)) > 1
        settings = {"version": version} if is_one_of_many and version.isdecimal() else {}
        request = replace(
            known.request,
            settings={**known.request.settings, **settings},
            workers=wanted or None,
            is_beside=is_one_of_many,
        )
        if not wanted and now:
            await self._repository.unload(name, version)
        elif wanted != now:
            await self._repository.load(name, request)
        elif (service := self._engine.versions.get((name, version))) is not None:
            self._engine.limit(service, least or None, most)
        self._registered.setdefault(name, {})[version] = Registered(request, version, (least, most))
        return self._workers(name, version)

    def _workers(self, name: str, version: str) -> int:
        service = self._engine.versions.get((name, version))
        return 0 if service is None else planned_workers(service)

    async def unregister(self, name: str, version: str) -> Answer:
        """Forget a model, or one version of it, and serve it no longer."""
        if not self._has_model_api:
            raise MethodNotAllowed()
        which = self._one(name, version)
        default = self._engine.services.get(name)
        if default is not None and default.version == which and len(self._versions(name)) > 1:
            raise DefaultVersion(f"Cannot remove default version for model {name}")
        if (name, which) in self._engine.versions:
            await self._repository.unload(name, which)
        await self._forget(name, which)
        return 200, f'Model "{name}" unregistered'

    def set_default(self, name: str, version: str) -> Answer:
        """Make a version that is served the default: it answers who names none."""
        self._engine.set_default(name, find_service(self._engine, name, version).version)
        return 200, f'Default version successfully updated for model "{name}" to "{version}"'

    def _in_background(self, change: Coroutine[Any, Any, Any]) -> None:
        self._started(_logged(change))

    def _started(self, change: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _logged(change: Coroutine[Any, Any, Any]) -> None:
    try:
        await change
    except PartitaError as error:
        log.warning("a change that nobody waited for failed: %s", error)


def _settings(given: Given) -> dict[str, Any]:
    return {
        key: _number(given, parameter, kind, least, most)
        for parameter, (key, kind, least, most) in SETTINGS.items()
        if parameter in given
    }


def _source(url: str) -> str:
    """Return the model of the store, or the URL, that a ``url`` means. Raises `InvalidRequest`."""
    if not url:
        raise InvalidRequest("Parameter url is required.")
    if "://" in url:
        return url
    if "/" in url or "\\" in url or ".." in url:
        raise InvalidRequest(f"Relative path is not allowed in url: {url[:200]}")
    return url.removesuffix(".onnx")


def _whole(given: Given, name: str, default: int, *, least: int) -> int:
    return int(_number(given, name, int, least, LARGEST)) if given.get(name) else default


def _number(given: Given, name: str, kind: type, least: float, most: float) -> float:
    try:
        value: float = kind(given[name])
    except ValueError:
        raise InvalidRequest(f"{name}: {given[name][:40]!r} is not a number") from None
    if not least <= value <= most:
        raise InvalidRequest(f"{name}: {value} is not between {least} and {most}")
    return value


def _flag(given: Given, name: str, *, default: bool) -> bool:
    return str(given[name]).lower() == "true" if name in given else default
