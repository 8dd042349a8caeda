"""Devices: pools of compute with a memory budget, one row of an allocation matrix each."""

from dataclasses import dataclass
from enum import StrEnum

MIB = 1 << 20
SLOTS = 2
"""Instances that may execute on a GPU at once unless told: one computes, another's items come or go."""


class DeviceKind(StrEnum):
    """What a device computes with."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One core group of the CPU, or one GPU; described by hand, or found on this machine.

    `name` is what a user writes for it: ``cpu:0-1`` is the CPUs 0 and 1, ``cuda:0`` the first GPU.
    """

    name: str
    kind: DeviceKind
    cores: tuple[int, ...] = ()
    """Logical CPUs of a core group, ascending; empty for a GPU."""
    index: int | None = None
    """Number of a GPU; None for a core group."""
    memory_bytes: int | None = None
    """What its workers may hold together; None = not known, and never too little."""
    slots: int = SLOTS
    """Instances that may execute on a GPU at once; a core group has its cores instead."""
    driver: str = ""
    """What drives a GPU, ``package.module:Class``; "" = CUDA."""

    def __post_init__(self) -> None:
        assert (self.kind is DeviceKind.CPU) == bool(self.cores), self
        assert (self.kind is DeviceKind.CUDA) == (self.index is not None), self
        assert self.slots >= 1, self

    @property
    def is_gpu(self) -> bool:
        """Whether it is filled before any core group (ensembles paper, algorithm 1)."""
        return self.kind is DeviceKind.CUDA


def mib(nbytes: float) -> str:
    """Return a size for a message, such as ``1536 MiB``; parts of a MiB count as a whole one."""
    return f"{-(-int(nbytes) // MIB)} MiB"
