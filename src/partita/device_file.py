"""Devices described by hand: a TOML file of ``[[device]]``, or the list that ``--devices`` takes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from partita.core.devices import MIB, Device
from partita.core.errors import InvalidInput
from partita.core.topology import Topology
from partita.reading import read_table, read_toml
from partita.settings import Positive
from partita.system.cpulists import parse_cpu_list
from partita.system.devices import check_distinct, core_groups, cpu_device, cuda_device, parse_devices
from partita.system.gpus import gpu_memory


class DeviceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``[[device]]``: one core group or GPU of a described machine."""

    kind: Literal["cpu", "cuda"]
    name: str = ""
    """What messages and matrices call it; by default ``cpu:0-3`` or ``cuda:0``."""
    cores: str | None = None
    """CPUs of a core group, ``"0-3"``."""
    index: int | None = None
    """Number of a GPU."""
    memory_mib: Positive | None = None
    """What its workers may hold together; unset = no limit."""

    def __post_init__(self) -> None:
        needed, other = ("cores", "index") if self.kind == "cpu" else ("index", "cores")
        if getattr(self, needed) is None or getattr(self, other) is not None:
            example = 'cores = "0-3"' if self.kind == "cpu" else "index = 0"
            raise ValueError(f'a device of kind "{self.kind}" needs {example}, and no {other}')
        if self.index is not None and self.index < 0:
            raise ValueError("index must be 0 or more")


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file of devices."""

    device: tuple[DeviceSettings, ...]


def read_devices(path: Path) -> tuple[Device, ...]:
    """Return the devices that a TOML file describes, in its order; raises `InvalidInput`."""
    where = f"{path}: "
    described = read_table(DeviceFile, read_toml(path), where=where).device
    if not described:
        raise InvalidInput(f"{where}there is no [[device]]")
    devices = tuple(_device(one, where) for one in described)
    check_distinct(devices, str(path))
    return devices


def _device(given: DeviceSettings, where: str) -> Device:
    memory_bytes = None if given.memory_mib is None else given.memory_mib * MIB
    if given.index is not None:
        return cuda_device(given.index, memory_bytes, given.name)
    try:
        return cpu_device(parse_cpu_list(given.cores or ""), memory_bytes, given.name)
    except InvalidInput as error:
        raise InvalidInput(f"{where}[device] {error}") from error


def devices_for(
    spec: str | None,
    topology: Topology,
    cores: tuple[int, ...],
    *,
    gpus: Callable[[], Mapping[int, int | None]] = gpu_memory,
) -> tuple[Device, ...]:
    """Return the devices of ``--devices``: a list, the path of a TOML file, or by default these cores.

    The default is the sockets that `cores` lie on; those of a single socket are halved, so that there is
    something to allocate. GPUs of a list are looked for on this machine. Raises `InvalidInput`.
    """
    if spec is not None:
        if spec.endswith(".toml"):
            return read_devices(Path(spec))
        return _found(parse_devices(spec, topology.memory_bytes), gpus)
    groups = topology.by_socket(cores)
    if len(groups) == 1 and len(cores) > 1:
        half = -(-len(cores) // 2)
        groups = (cores[:half], cores[half:])
    return core_groups(groups, topology.memory_bytes)


def _found(devices: tuple[Device, ...], gpus: Callable[[], Mapping[int, int | None]]) -> tuple[Device, ...]:
    """Return the devices, GPUs with their memory; raises `InvalidInput` for one that is not there."""
    if not any(device.is_gpu for device in devices):
        return devices
    memory = gpus()
    known = "no GPU" if not memory else ", ".join(f"cuda:{index}" for index in sorted(memory))
    for device in devices:
        if device.index is not None and device.index not in memory:
            raise InvalidInput(f"{device.name}: there is no such GPU; this machine has {known}")
    return tuple(
        device if device.index is None else cuda_device(device.index, memory[device.index], device.name)
        for device in devices
    )
