"""The starting allocation: worst-fit decreasing on memory (ensembles paper, algorithm 1).

Every model gets one worker with the smallest batch size. Models are placed largest first, each on the
device with the most memory left; core groups are used only for what no GPU has room for.
"""

from collections.abc import Sequence

from partita.core.allocation import AllocationMatrix
from partita.core.devices import Device, mib
from partita.core.errors import NoFeasiblePlan

UNLIMITED = float("inf")


def worst_fit_decreasing(
    devices: Sequence[Device],
    models: Sequence[str],
    memory_bytes: Sequence[Sequence[int]],
    batch: int,
) -> AllocationMatrix:
    """Return the matrix in which every model has one worker of `batch` items.

    `memory_bytes` [device][model] is what that worker holds there. Between devices with equally much memory
    left, the one that holds less wins, then the first. Raises `NoFeasiblePlan` saying which model, how much
    is missing, and on which devices.
    """
    packing = _Packing(devices, memory_bytes)
    matrix = AllocationMatrix.empty(len(devices), len(models))
    for model in _largest_first(models, memory_bytes):
        device = packing.place(model)
        if device is None:
            raise NoFeasiblePlan(packing.explain(model, models, batch))
        matrix = matrix.with_element(device, model, batch)
    return matrix


def _largest_first(models: Sequence[str], memory_bytes: Sequence[Sequence[int]]) -> list[int]:
    """Return the models by the most memory they hold on any device; equal ones in the order given."""
    size = [max(row[model] for row in memory_bytes) for model in range(len(models))]
    return sorted(range(len(models)), key=lambda model: -size[model])


class _Packing:
    """How full the devices are."""

    def __init__(self, devices: Sequence[Device], memory_bytes: Sequence[Sequence[int]]) -> None:
        self._devices = devices
        self._needs = memory_bytes
        self._held = [0] * len(devices)
        self._placed: list[list[int]] = [[] for _ in devices]

    def place(self, model: int) -> int | None:
        """Put the model where it belongs and return where that is; None where nothing has room."""
        for wants_gpu in (True, False):
            device = self._emptiest(wants_gpu)
            if device is not None and self._needs[device][model] <= self._free(device):
                self._held[device] += self._needs[device][model]
                self._placed[device].append(model)
                return device
        return None

    def _free(self, device: int) -> float:
        memory = self._devices[device].memory_bytes
        return UNLIMITED if memory is None else memory - self._held[device]

    def _emptiest(self, is_gpu: bool) -> int | None:
        """Return the device of a kind with the most memory left (the paper's more_remaining_memory)."""
        of_kind = [d for d, device in enumerate(self._devices) if device.is_gpu == is_gpu]
        return max(of_kind, key=lambda d: (self._free(d), -self._held[d], -d), default=None)

    def explain(self, model: int, models: Sequence[str], batch: int) -> str:
        """Say what is missing for a model that fits nowhere."""
        missing = {d: self._needs[d][model] - self._free(d) for d in range(len(self._devices))}
        nearest = min(missing, key=lambda d: missing[d])
        room = []
        for d, device in enumerate(self._devices):
            held = ", ".join(models[m] for m in self._placed[d]) or "nothing"
            room.append(
                f"{device.name} has {mib(self._free(d))} left of {mib(device.memory_bytes or 0)} ({held})"
            )
        return (
            f"{models[model]} does not fit: with batches of {batch} it needs "
            f"{mib(self._needs[nearest][model])}, {mib(missing[nearest])} more than "
            f"{self._devices[nearest].name} has left; {'; '.join(room)}"
        )
