"""TorchServe's two services over gRPC: inference and management."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc

from partita.core.errors import InvalidRequest, PartitaError
from partita.protocols.access import Access
from partita.protocols.grpc.handlers import AsyncMethod, at_once, one_to_many, unary
from partita.protocols.grpc.pool import message_classes
from partita.protocols.torchserve.archives import HandlerStatus, content_of, is_archive
from partita.protocols.torchserve.fields import Part
from partita.protocols.torchserve.operations import Answer, TorchServeOperations
from partita.protocols.torchserve.predictions import Predictor
from partita.protocols.torchserve.replies import ERRORS, message_of, pretty, request_id

INFERENCE = "org.pytorch.serve.grpc.inference"
MANAGEMENT = "org.pytorch.serve.grpc.management"
INFERENCE_CLASSES = message_classes(
    INFERENCE,
    """
Nothing:
PredictionsRequest: 1 model_name string, 2 model_version string, 3 input map bytes
PredictionResponse: 1 prediction bytes
TorchServeHealthResponse: 1 health string
""",
    {},
)
MANAGEMENT_CLASSES = message_classes(
    MANAGEMENT,
    """
ManagementResponse: 1 msg string
DescribeModelRequest: 1 model_name string, 2 model_version string, 3 customized bool
ListModelsRequest: 1 limit int32, 2 next_page_token int32
RegisterModelRequest: 1 batch_size int32, 2 handler string, 3 initial_workers int32, 4 max_batch_delay int32,
  5 model_name string, 6 response_timeout int32, 7 runtime string, 8 synchronous bool, 9 url string,
  10 s3_sse_kms bool
ScaleWorkerRequest: 1 model_name string, 2 model_version string, 3 max_worker int32, 4 min_worker int32,
  5 number_gpu int32, 6 synchronous bool, 7 timeout int32
SetDefaultRequest: 1 model_name string, 2 model_version string
UnregisterModelRequest: 1 model_name string, 2 model_version string
""",
    {},
)
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC status of each HTTP status that TorchServe would have answered; INTERNAL for any other."""


def _says(error: PartitaError) -> tuple[grpc.StatusCode, str]:
    if error.code == "not_authorized":
        return grpc.StatusCode.PERMISSION_DENIED, message_of(error)
    status = error.status if isinstance(error, HandlerStatus) else ERRORS.get(error.code, (500, ""))[0]
    return _STATUS.get(status, grpc.StatusCode.INTERNAL), message_of(error)


class TorchServeGrpc:
    """The services' methods."""

    def __init__(self, predictor: Predictor, operations: TorchServeOperations, access: Access | None) -> None:
        self._predictor = predictor
        self._operations = operations
        self._access = access
        """None = there is no management."""

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the services."""
        inference, management = INFERENCE_CLASSES, MANAGEMENT_CLASSES
        predict = unary(inference["PredictionsRequest"], self.predict, says=_says, is_timed=True)
        stream = one_to_many(inference["PredictionsRequest"], self.predict_in_parts, says=_says)
        methods = {
            "Ping": unary(inference["Nothing"], at_once(self.ping)),
            "Predictions": predict,
            "StreamPredictions": stream,
        }
        services = [grpc.method_handlers_generic_handler(f"{INFERENCE}.InferenceAPIsService", methods)]
        if self._access is not None:
            changes: dict[str, AsyncMethod] = {
                "DescribeModel": self.describe,
                "ListModels": self.list,
                "RegisterModel": self.register,
                "ScaleWorker": self.scale,
                "SetDefault": self.set_default,
                "UnregisterModel": self.unregister,
            }
            methods = {
                name: unary(management[f"{name}Request"], self._guarded(method), says=_says)
                for name, method in changes.items()
            }
            service = f"{MANAGEMENT}.ManagementAPIsService"
            services.append(grpc.method_handlers_generic_handler(service, methods))
        return services

    def ping(self, request: Any) -> Any:  # noqa: ARG002
        """Whether every model has its workers."""
        health = "Healthy" if self._predictor.is_healthy else "Unhealthy"
        return INFERENCE_CLASSES["TorchServeHealthResponse"](health=pretty({"status": health}).decode())

    async def predict(self, request: Any, authorization: str | None, left_s: float | None) -> Any:
        """Predict from named inputs, as from the fields of a form."""
        service = self._predictor.find(request.model_name, request.model_version, authorization)
        if not request.input:
            raise InvalidRequest("input: expected at least one entry")
        if is_archive(service):
            parts = [Part(name, "", value) for name, value in request.input.items()]
            answer = await self._predictor.call(service, request_id(None), parts, (), left_s)
            return INFERENCE_CLASSES["PredictionResponse"](prediction=content_of(answer))
        values = await self._predictor.predict(service, dict(request.input), left_s)
        prediction = values if isinstance(values, bytes) else pretty(values)
        return INFERENCE_CLASSES["PredictionResponse"](prediction=prediction)

    async def predict_in_parts(
        self, request: Any, authorization: str | None, left_s: float | None
    ) -> AsyncGenerator[Any, None]:
        """The same, each part of an archive's answer as soon as it is there; of other models the answer."""
        service = self._predictor.find(request.model_name, request.model_version, authorization)
        if not is_archive(service) or not request.input:
            yield await self.predict(request, authorization, left_s)
            return
        parts = [Part(name, "", value) for name, value in request.input.items()]
        answers = self._predictor.answers(service, request_id(None), parts, (), left_s)
        async with aclosing(answers):
            async for answer, _ in answers:
                yield INFERENCE_CLASSES["PredictionResponse"](prediction=content_of(answer))

    def _guarded(self, method: AsyncMethod) -> AsyncMethod:
        async def guarded(request: Any, authorization: str | None) -> Any:
            assert self._access is not None
            self._access.check(authorization)
            text: str = await method(request, authorization)
            return MANAGEMENT_CLASSES["ManagementResponse"](msg=text)

        return guarded

    async def describe(self, request: Any, authorization: str | None) -> str:  # noqa: ARG002
        """Describe one model."""
        name, version = request.model_name, request.model_version
        if request.customized:
            return pretty(await self._operations.customized(name, version)).decode()
        return pretty(self._operations.descriptions(name, version)).decode()

    async def list(self, request: Any, authorization: str | None) -> str:  # noqa: ARG002
        """List the models."""
        return pretty(self._operations.page(_given(request))).decode()

    async def register(self, request: Any, authorization: str | None) -> str:  # noqa: ARG002
        """Register a model."""
        given = {"synchronous": "false", **_given(request)}
        return _text(await self._operations.register(given))

    async def scale(self, request: Any, authorization: str | None) -> str:  # noqa: ARG002
        """Scale a model's workers."""
        given = _given(request)
        name, version = given.pop("model_name", ""), given.pop("model_version", "")
        return _text(await self._operations.scale(name, version, given))

    async def set_default(self, request: Any, authorization: str | None) -> str:  # noqa: ARG002
        """Make a version the default."""
        return _text(self._operations.set_default(request.model_name, request.model_version))

    async def unregister(self, request: Any, authorization: str | None) -> str:  # noqa: ARG002
        """Unregister a model."""
        return _text(await self._operations.unregister(request.model_name, request.model_version))


def _given(request: Any) -> dict[str, str]:
    """Return the fields that are set, as the text that they would be in a query."""
    return {
        field.name: str(value).lower() if isinstance(value, bool) else str(value)
        for field, value in request.ListFields()
    }


def _text(answer: Answer) -> str:
    return answer[1]
