"""The one tree of errors.

Every failure that can reach a user is one class with a stable ``code``. Protocol front ends map codes to
status numbers; nothing below them knows HTTP or gRPC.
"""

from typing import ClassVar


class PartitaError(Exception):
    """Root of all errors that Partita raises on purpose."""

    code: ClassVar[str] = "internal"


# --- what a user gave us --------------------------------------------------------------------------


class InvalidInput(PartitaError):
    """A file, option or argument is wrong; the message says what, where, and what would be right."""

    code = "invalid_input"


class DownloadFailed(InvalidInput):
    """What lies at a URL could not be fetched, though it may be."""

    code = "download_failed"


class MissingExtra(InvalidInput):
    """An optional dependency is not installed; the message names the extra to install."""

    code = "missing_extra"


class ProfileMismatch(InvalidInput):
    """A stored profile belongs to another model, machine or runtime."""

    code = "profile_mismatch"


class NoFeasiblePlan(InvalidInput):
    """No plan fits the cores, batch, sockets or memory asked for."""

    code = "no_feasible_plan"


# --- one request ----------------------------------------------------------------------------------


class RequestError(PartitaError):
    """Root of the errors that one request can end with."""

    code = "request_failed"


class InvalidRequest(RequestError):
    """A request does not match the model's signature or the protocol."""

    code = "invalid_request"


class PayloadTooLarge(InvalidRequest):
    """A request is larger than a limit; the message names the limit and its setting."""

    code = "payload_too_large"


class NotAuthorized(RequestError):
    """What was asked changes the server, and the token for that is missing, wrong or expired."""

    code = "not_authorized"


class ForeignCaller(NotAuthorized):
    """What was asked changes the server, and a page or under a name asked that the settings do not know."""

    code = "foreign_caller"


class ModelNotFound(RequestError):
    """No model or version of that name is served."""

    code = "model_not_found"


class ModelUnavailable(RequestError):
    """The model is known but cannot answer now: it is loading, or has failed to load."""

    code = "model_unavailable"


class QueueFull(RequestError):
    """The model's bounded queue, or its item memory, has no room: refused at once."""

    code = "queue_full"


class ShuttingDown(RequestError):
    """The server is draining and takes no new requests."""

    code = "shutting_down"


class DeadlineExceeded(RequestError):
    """The request's deadline, or the queue timeout, passed before its answer was there."""

    code = "deadline_exceeded"


class RequestCancelled(RequestError):
    """The client went away or cancelled."""

    code = "cancelled"


class InferenceFailed(RequestError):
    """The model or its handler raised on this very request, alone."""

    code = "inference_failed"


class WorkerDied(RequestError):
    """The request was being executed in two worker deaths and is not tried again."""

    code = "worker_died"


# --- a worker -------------------------------------------------------------------------------------


class LoadFailed(PartitaError):
    """A worker could not load its model; the message carries the runtime's reason."""

    code = "load_failed"


class SwitchFailed(PartitaError):
    """A model goes on with the plan that it had: the new one could not be set up, or was given up."""

    code = "switch_failed"


class ConnectionClosed(PartitaError):
    """The other end of a channel is gone."""

    code = "connection_closed"
