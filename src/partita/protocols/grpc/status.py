"""The gRPC status of each error."""

import grpc

from partita.core.errors import PartitaError

STATUS = {
    "invalid_request": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_input": grpc.StatusCode.INVALID_ARGUMENT,
    "download_failed": grpc.StatusCode.INVALID_ARGUMENT,
    "payload_too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "not_authorized": grpc.StatusCode.UNAUTHENTICATED,
    "foreign_caller": grpc.StatusCode.PERMISSION_DENIED,
    "load_failed": grpc.StatusCode.INVALID_ARGUMENT,
    "model_not_found": grpc.StatusCode.NOT_FOUND,
    "model_unavailable": grpc.StatusCode.UNAVAILABLE,
    "queue_full": grpc.StatusCode.UNAVAILABLE,
    "shutting_down": grpc.StatusCode.UNAVAILABLE,
    "deadline_exceeded": grpc.StatusCode.DEADLINE_EXCEEDED,
    "cancelled": grpc.StatusCode.CANCELLED,
}
"""By the error's code; INTERNAL for any other."""


def status_of(error: PartitaError) -> grpc.StatusCode:
    """Return the status that an error is answered with."""
    return STATUS.get(error.code, grpc.StatusCode.INTERNAL)
