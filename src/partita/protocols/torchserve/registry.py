"""What came, or was scaled, over TorchServe's management API."""

from dataclasses import dataclass

from partita.engine.service import Service
from partita.protocols.repository import LoadRequest


@dataclass(frozen=True, slots=True)
class Registered:
    """What a model was registered with."""

    request: LoadRequest
    version: str
    limits: tuple[int, int] | None = None
    """Least and most workers that were asked for."""


Registry = dict[str, dict[str, Registered]]
"""By name and version; what is not served waits for workers."""


def planned_workers(service: Service) -> int:
    """Return how many workers a service's plan has; those that sleep for another plan are not counted."""
    return 0 if service.plan is None else len(service.plan.instances)
