"""Devices described by hand: a TOML file of ``[[device]]``, or the list that ``--devices`` takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from partita.core.devices import MIB, SLOTS, Device
from partita.core.errors import InvalidInput, NoFeasiblePlan
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
    slots: Positive = SLOTS
    """Instances that may execute on a GPU at once."""
    driver: str = ""
    """What drives a GPU, ``package.module:Class``: with one, the machine is not only planned for."""

    def __post_init__(self) -> None:
        needed, other = ("cores", "index") if self.kind == "cpu" else ("index", "cores")
        if getattr(self, needed) is None or getattr(self, other) is not None:
            example = 'cores = "0-3"' if self.kind == "cpu" else "index = 0"
            raise ValueError(f'a device of kind "{self.kind}" needs {example}, and no {other}')
        if self.kind == "cpu" and self.driver:
            raise ValueError("a core group needs no driver")
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
        device = cuda_device(given.index, memory_bytes, given.name)
        return replace(device, slots=given.slots, driver=given.driver)
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
        device if device.index is None else replace(device, memory_bytes=memory[device.index])
        for device in devices
    )


def is_runnable(devices: Sequence[Device], *, is_described: bool) -> bool:
    """Whether models can run on these: GPUs of a described machine only where it says what drives them."""
    gpus = [device for device in devices if device.is_gpu]
    return all(gpu.driver for gpu in gpus) and bool(gpus) if is_described else True


def check_gpus(devices: Sequence[Device], gpus: Callable[[], Mapping[int, int | None]] = gpu_memory) -> None:
    """Raise `NoFeasiblePlan` for a GPU that this machine has not, unless another driver sees to it."""
    wanted = [device for device in devices if device.is_gpu and not device.driver]
    there = gpus() if wanted else {}
    for device in wanted:
        if device.index not in there:
            raise NoFeasiblePlan(f"the allocation has {device.name}, and there is no such GPU here")
