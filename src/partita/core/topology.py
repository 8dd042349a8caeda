"""The cores of a machine, as a value that can be read from the system or described by hand."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class LogicalCpu:
    """One schedulable CPU. Two of one (socket, core) are hyperthreads of one physical core."""

    socket: int
    node: int
    core: int
    cpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The logical CPUs that a process may use, and how many of them a quota lets run at once."""

    cpus: tuple[LogicalCpu, ...]
    quota_cores: float | None = None
    """CPU seconds per second that the cgroup allows; None = no quota."""
    memory_bytes: int | None = None
    """Least of the machine's memory and the cgroup limit; None = unknown."""
    cpu_model: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cpus", tuple(sorted(self.cpus)))
        assert self.cpus, "a topology has at least one CPU"

    @property
    def sockets(self) -> tuple[int, ...]:
        """Socket numbers, ascending."""
        return tuple(sorted({c.socket for c in self.cpus}))

    @property
    def most_at_once(self) -> int | None:
        """How many CPUs the quota lets run at once: rounded down, at least 1; None = no quota."""
        return None if self.quota_cores is None else max(1, int(self.quota_cores))

    @property
    def usable_cores(self) -> int:
        """Largest T: physical cores allowed, no more than the quota rounded down, at least 1."""
        physical = len({(c.socket, c.core) for c in self.cpus})
        return physical if self.most_at_once is None else min(physical, self.most_at_once)

    def core_order(self) -> tuple[LogicalCpu, ...]:
        """CPUs in the order to hand out: one hyperthread of every physical core first, then the rest."""
        seen: set[tuple[int, int]] = set()
        first: list[LogicalCpu] = []
        rest: list[LogicalCpu] = []
        for cpu in self.cpus:
            key = (cpu.socket, cpu.core)
            (rest if key in seen else first).append(cpu)
            seen.add(key)
        return (*first, *rest)

    def by_socket(self, cores: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Return these logical CPUs by socket, each socket's in the order given; unknown ones left out."""
        socket_of = {cpu.cpu: cpu.socket for cpu in self.cpus}
        sockets: dict[int, list[int]] = {}
        for core in cores:
            if core in socket_of:
                sockets.setdefault(socket_of[core], []).append(core)
        return tuple(tuple(sockets[socket]) for socket in sorted(sockets))

    def __str__(self) -> str:
        physical = len({(c.socket, c.core) for c in self.cpus})
        quota = "" if self.quota_cores is None else f", quota {self.quota_cores:g} cores"
        sockets = len(self.sockets)
        return f"{sockets} socket{'s' * (sockets > 1)}, {physical} cores, {len(self.cpus)} threads{quota}"
