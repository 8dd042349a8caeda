"""Why a service takes no request now, or gave one up, in the words that its client gets."""

from partita.core.errors import (
    ModelUnavailable,
    PayloadTooLarge,
    QueueFull,
    RequestError,
    ShuttingDown,
    WorkerDied,
)
from partita.engine.service_state import ServiceState
from partita.machines.work import Job


def refusal(name: str, state: ServiceState, failure: str | None, *, n_items: int, limit: int) -> RequestError:
    """Return the error for a request of so many items to a model whose queue has room for `limit`."""
    if state is not ServiceState.READY:
        return not_serving(name, state, failure)
    if n_items > limit:
        return PayloadTooLarge(f"{n_items} items are over queue_size = {limit} of model {name!r}")
    return QueueFull(f"the queue of model {name!r} is full ({limit} items); try again later")


def not_serving(name: str, state: ServiceState, failure: str | None) -> RequestError:
    """Return the error for a request to a model that is not ready."""
    if state in (ServiceState.DRAINING, ServiceState.STOPPED):
        return ShuttingDown("the server is shutting down")
    return ModelUnavailable(f"model {name!r} is {state.value}" + (f": {failure}" if failure else ""))


def died(job: Job, reason: str) -> WorkerDied:
    """Return the error of a job that cannot be tried again after its worker died."""
    when = "in the middle of this answer" if job.is_partly_answered else "twice executing this request"
    return WorkerDied(f"the worker died {when}: {reason}")
