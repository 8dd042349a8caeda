"""Predictions: from fields to the engine, and back."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from partita.core.errors import (
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    NotAuthorized,
    PartitaError,
    PayloadTooLarge,
    RequestError,
)
from partita.engine.engine import Engine
from partita.engine.request import Buffer, Request, Shapes
from partita.engine.service import Service
from partita.protocols.access import Keys, bearer
from partita.protocols.torchserve.archives import answer_in, asked_archive, is_archive
from partita.protocols.torchserve.fields import Part
from partita.protocols.torchserve.registry import Registered, planned_workers
from partita.protocols.torchserve.replies import VersionNotFound
from partita.protocols.torchserve.tensors import Asked, by_input, values_of
from partita.wire.archive_call import Answer, unpack_answer

NO_WORKER = (
    'Model "{}" has no worker to serve inference request. Please use scale workers API to add workers. '
    "If this is a sequence inference, please check if it is closed, or expired; "
    "or exceeds maxSequenceJobQueueSize"
)

MAX_UNTAKEN_BYTES = 16 << 20
"""Of parts of an answer that its client has not read."""


class Prediction:
    """One request in the engine; its `Sink`."""

    __slots__ = ("_is_single", "_service", "answer", "request")

    def __init__(self, service: Service, asked: Asked, deadline_s: float | None = None) -> None:
        self._service = service
        self._is_single = asked.is_single
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """Values, or what kept them from coming."""
        self.request = asked.submit(service, self, None, deadline_s)

    async def values(self) -> Any:
        """Wait for them; who is cancelled meanwhile cancels the request. Raises `RequestError`."""
        try:
            outcome = await self.answer
        except asyncio.CancelledError:
            self._service.cancel(self.request)
            raise
        if isinstance(outcome, PartitaError):
            raise outcome
        return outcome

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        """Keep the values: the buffers are the worker's."""
        if not self.answer.done():
            self.answer.set_result(self._values(outputs, shapes))

    def _values(self, outputs: Sequence[Buffer], shapes: Shapes) -> Any:
        if is_archive(self._service):
            try:
                return answer_in(outputs)
            except InferenceFailed as error:
                return error
        return values_of(self._service.signature, outputs, shapes, is_single=self._is_single)

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        """Keep the error."""
        if not self.answer.done():
            self.answer.set_result(error)


class PartedPrediction(Prediction):
    """The same for an answer in parts; the engine's `PartSink`. Each part is kept until it is taken."""

    __slots__ = ("_left", "_parts")

    def __init__(self, service: Service, asked: Asked, deadline_s: float | None = None) -> None:
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._left = MAX_UNTAKEN_BYTES
        super().__init__(service, asked, deadline_s)
        self.answer.add_done_callback(lambda _: self._parts.put_nowait(None))

    def part(self, request: Request, data: bytes) -> None:
        """Keep a part; who takes none gets no more."""
        self._left -= len(data)
        if self._left >= 0:
            self._parts.put_nowait(data)
            return
        self._service.cancel(request)
        if not self.answer.done():
            text = f"more than {MAX_UNTAKEN_BYTES} bytes of the answer's parts were not read"
            self.answer.set_result(PayloadTooLarge(text))

    async def answers(self) -> AsyncGenerator[tuple[Answer, bool], None]:
        """Yield the parts, and at last what is left, with whether it is that.

        Who stops before cancels the request. Raises `RequestError`.
        """
        try:
            while (data := await self._parts.get()) is not None:
                self._left += len(data)
                yield unpack_answer(data), False
            yield await self.values(), True
        finally:
            self._service.cancel(self.request)


class Predictor:
    """Finds the model that a request is for, and asks it."""

    def __init__(
        self,
        engine: Engine,
        keys: Keys | None = None,
        registered: Mapping[str, Mapping[str, Registered]] | None = None,
    ) -> None:
        self.engine = engine
        self._registered = {} if registered is None else registered
        """Versions of models that are known, also those that have no workers now."""
        self._keys = keys
        """Who asks for a prediction shows the inference key; None = need not."""

    @property
    def is_healthy(self) -> bool:
        """Whether each model's default version has as many workers as it is to have at least."""
        return all(self._has_enough(service) for service in self.engine.services.values())

    def _has_enough(self, service: Service) -> bool:
        known = self._registered.get(service.name, {}).get(service.version)
        limits = (known and known.limits) or self.engine.deployment(service).workers
        least = min(limits[0] or 1, planned_workers(service))  # of which there are no more than cores
        return service.is_ready and service.member.ready_instances >= least

    def check(self, authorization: str | None) -> None:
        """Raise `NotAuthorized` unless this may ask for predictions."""
        if self._keys is not None and not self._keys.allows("inference", bearer(authorization)):
            raise NotAuthorized("the inference token is missing, wrong or expired")

    def find(self, model: str, version: str, authorization: str | None) -> Service:
        """Return the model's service. Raises `RequestError` with TorchServe's words."""
        self.check(authorization)
        known = self._registered.get(model)
        if known:
            is_served = (model, version) in self.engine.versions if version else model in self.engine.services
            if not is_served and (not version or version in known):
                raise ModelUnavailable(NO_WORKER.format(model))
        return find_service(self.engine, model, version)

    async def call(
        self,
        service: Service,
        request_id: str,
        parts: Iterable[Part],
        headers: Sequence[tuple[str, str]],
        deadline_s: float | None = None,
    ) -> Answer:
        """Return what an archive's handler answers."""
        answer = await Prediction(
            service, asked_archive(service, request_id, parts, headers), deadline_s
        ).values()
        assert isinstance(answer, Answer)
        return answer

    def answers(
        self,
        service: Service,
        request_id: str,
        parts: Iterable[Part],
        headers: Sequence[tuple[str, str]],
        deadline_s: float | None = None,
    ) -> AsyncGenerator[tuple[Answer, bool], None]:
        """Return the parts of what an archive's handler answers, each with whether it is the last."""
        asked = asked_archive(service, request_id, parts, headers, takes_parts=True)
        return PartedPrediction(service, asked, deadline_s).answers()

    async def predict(
        self, service: Service, fields: Mapping[str, bytes], deadline_s: float | None = None
    ) -> Any:
        """Return what a model makes of a body's fields: bytes as they are, or what is to be JSON."""
        memo = service.memo.setdefault("torchserve", {})
        asked = Asked(service.signature, by_input(service.signature, fields), memo)
        return await Prediction(service, asked, deadline_s).values()


def find_service(engine: Engine, model: str, version: str) -> Service:
    """Return a service, or raise with TorchServe's words. ``1.0`` means version 1 as well."""
    service = engine.services.get(model)
    if service is None:
        raise ModelNotFound(f"Model not found: {model}")
    if not version or version == service.version:
        return service
    for known in (version, version.removesuffix(".0")):
        if (found := engine.versions.get((model, known))) is not None:
            return found
    raise VersionNotFound(f"Model version: {version} does not exist for model: {model}")
