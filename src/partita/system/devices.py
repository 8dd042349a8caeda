"""The devices of this machine, as a user names them: ``cpu:0-1,cpu:2-3,cuda:0``."""

from collections.abc import Sequence

from partita.core.devices import Device, DeviceKind
from partita.core.errors import InvalidInput
from partita.system.cpulists import format_cpu_list, parse_cpu_list

EXAMPLE = "cpu:0-1,cpu:2-3,cuda:0"


def parse_devices(text: str, memory_bytes: int | None = None) -> tuple[Device, ...]:
    """Return the devices that a list such as ``cpu:0-1,cpu:4,6,cuda:0`` names, in its order.

    A number or range without a kind belongs to the core group before it. `memory_bytes` is shared by the
    core groups in proportion to their cores; that of GPUs is left open. Raises `InvalidInput` for what is no
    such list, or names a CPU or GPU twice.
    """
    groups: list[tuple[str, list[str]]] = []
    for field in (part.strip() for part in text.split(",")):
        kind, colon, rest = field.partition(":")
        if colon:
            groups.append((kind.strip(), [rest.strip()]))
        elif groups and groups[-1][0] == DeviceKind.CPU:
            groups[-1][1].append(field)
        else:
            raise InvalidInput(f"devices {text!r}: {field!r} names no kind; write e.g. {EXAMPLE}")
    devices = [_device(kind, ",".join(parts), text) for kind, parts in groups]
    check_distinct(devices, f"devices {text!r}")
    return _with_memory(devices, memory_bytes)


def core_groups(groups: Sequence[Sequence[int]], memory_bytes: int | None = None) -> tuple[Device, ...]:
    """Return groups of CPUs as devices, which share `memory_bytes` in proportion to their cores."""
    return _with_memory([cpu_device(tuple(sorted(group))) for group in groups], memory_bytes)


def cpu_device(cores: tuple[int, ...], memory_bytes: int | None = None, name: str = "") -> Device:
    """Return a core group, named by its CPUs unless it has a name."""
    named = name or f"cpu:{format_cpu_list(cores)}"
    return Device(name=named, kind=DeviceKind.CPU, cores=cores, memory_bytes=memory_bytes)


def cuda_device(index: int, memory_bytes: int | None = None, name: str = "") -> Device:
    """Return a GPU, named by its number unless it has a name."""
    named = name or f"cuda:{index}"
    return Device(name=named, kind=DeviceKind.CUDA, index=index, memory_bytes=memory_bytes)


def _device(kind: str, rest: str, text: str) -> Device:
    if kind == DeviceKind.CPU:
        try:
            return cpu_device(parse_cpu_list(rest))
        except InvalidInput as error:
            raise InvalidInput(f"devices {text!r}: {error}") from error
    if kind == DeviceKind.CUDA:
        if not (rest.isascii() and rest.isdecimal()):
            raise InvalidInput(f"devices {text!r}: {rest!r} is not the number of a GPU; write e.g. cuda:0")
        return cuda_device(int(rest))
    raise InvalidInput(f"devices {text!r}: unknown kind {kind!r}; there are cpu and cuda, as in {EXAMPLE}")


def check_distinct(devices: Sequence[Device], where: str) -> None:
    """Raise `InvalidInput` if two devices share a CPU, a GPU or a name."""
    names = [device.name for device in devices]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{where}: {name} is there twice")
    owner: dict[str, str] = {}
    for device in devices:
        parts = [f"cuda:{device.index}"] if device.is_gpu else [f"CPU {core}" for core in device.cores]
        for part in parts:
            if owner.setdefault(part, device.name) != device.name:
                raise InvalidInput(f"{where}: {owner[part]} and {device.name} share {part}")


def _with_memory(devices: Sequence[Device], memory_bytes: int | None) -> tuple[Device, ...]:
    cores = sum(len(device.cores) for device in devices)
    if memory_bytes is None or not cores:
        return tuple(devices)
    return tuple(
        device if device.is_gpu else cpu_device(device.cores, memory_bytes * len(device.cores) // cores)
        for device in devices
    )
