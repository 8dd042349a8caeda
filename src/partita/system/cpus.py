"""The CPUs that this process may use, where they sit, and pinning to them.

Everything is read below `root`, so that a test can describe a machine by files.
"""

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.topology import LogicalCpu, Topology
from partita.system.cgroups import ROOT, cpu_quota, cpu_set, memory_limit, read_text
from partita.system.cpulists import format_cpu_list as format_cores
from partita.system.cpulists import parse_cpu_list as parse_cores
from partita.system.memory import total_bytes

__all__ = [
    "allowed_cpus",
    "format_cores",
    "parse_cores",
    "pin",
    "read_topology",
    "select_cores",
    "wake_promptly",
    "yield_to_waking",
]

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, which the C library does not wrap."""
_RESET_ON_FORK = 1
_TURN_NS = 100_000


def read_topology(root: Path = ROOT) -> Topology:
    """Return the CPUs allowed by affinity and CPU set, with the quota and memory of the control groups.

    What the system does not tell is taken as the simplest machine: each CPU its own core on socket 0.
    """
    nodes = _nodes(root)
    memory = [limit for limit in (memory_limit(root), total_bytes(root)) if limit is not None]
    return Topology(
        cpus=tuple(_logical_cpu(root, cpu, nodes.get(cpu)) for cpu in allowed_cpus(root)),
        quota_cores=cpu_quota(root),
        memory_bytes=min(memory, default=None),
        cpu_model=_cpu_model(root),
    )


def allowed_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """Return the logical CPUs that both the affinity mask and the control groups' CPU sets allow."""
    affinity = _affinity(root)
    allowed = cpu_set(root)
    both = affinity if allowed is None else affinity & allowed
    return tuple(
        sorted(both or affinity)
    )  # disjoint sets: a CPU set that is out of date; the kernel obeys affinity


def select_cores(topology: Topology, wanted: str | None) -> tuple[int, ...]:
    """Return the logical CPUs that ``LIST|N`` means on this machine, in the order to hand them out.

    A plain number says how many: one thread of every physical core first. A list or range (``0-3``, ``3,``)
    says which. None: as many as may run at once. Raises `InvalidInput` for CPUs that are not allowed to us.
    """
    order = tuple(cpu.cpu for cpu in topology.core_order())
    if wanted is None:
        return order[: topology.usable_cores]
    text = wanted.strip()
    if not text.isdecimal():
        return _within_quota(topology, _listed(order, text.removesuffix(",")))
    count = int(text)
    if not 1 <= count <= len(order):
        raise InvalidInput(
            f"cores {wanted}: this process may use 1 to {len(order)} CPUs ({format_cores(order)}); "
            "a plain number says how many, a list such as 0-3 or 3, says which"
        )
    return _within_quota(topology, order[:count])


def pin(cores: Iterable[int]) -> bool:
    """Pin the calling thread, and the threads it will start, to these CPUs; False where that is refused.

    No cores means no wish: nothing changes. On False the thread may run where it could before.
    """
    wanted = set(cores)
    if not wanted:
        return True
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, wanted)
        if os.sched_getaffinity(0) == wanted:
            return True
        os.sched_setaffinity(0, before)  # the kernel drops CPUs that a CPU set forbids without a word
    except (OSError, ValueError, OverflowError, AttributeError):
        return False
    return False


def yield_to_waking() -> None:
    """Preempt nobody on waking up: whoever runs on the CPU goes on until it sleeps or its time is over.

    For workers that take turns, and for short executions that may run on more cores than they use: the head,
    which often runs where one wakes, first wakes the others, too, or sends the rest of what it has.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def wake_promptly() -> bool:
    """Have this thread run as soon as it wakes up, whoever has just begun on that CPU; False: not done.

    Linux lets others finish their turn of some milliseconds, except before threads that ask for short turns
    (from 6.12 on; older kernels take no notice). Processes that this thread starts have ordinary turns.
    """
    number, nice = _SCHED_SETATTR.get(platform.machine()), os.getpriority(os.PRIO_PROCESS, 0)
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    if number is None or nice < 0 or policy != os.SCHED_OTHER:
        return False  # it has a better place already, which processes that it starts would lose
    # The kernel's struct sched_attr: size, policy, flags, nice, priority, runtime, deadline and period.
    wish = struct.pack("=IIQiIQQQ", 48, policy, _RESET_ON_FORK, nice, 0, _TURN_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, wish, 0) == 0)


def _listed(order: tuple[int, ...], text: str) -> tuple[int, ...]:
    cores = parse_cores(text)
    missing = set(cores) - set(order)
    if missing:
        raise InvalidInput(
            f"cores {text}: CPU {format_cores(missing)} is not allowed to this process, which may use "
            f"{format_cores(order)}"
        )
    return tuple(cpu for cpu in order if cpu in cores)


def _within_quota(topology: Topology, cores: tuple[int, ...]) -> tuple[int, ...]:
    most = topology.most_at_once
    if most is not None and len(cores) > most:
        raise InvalidInput(
            f"cores: {len(cores)} are asked for, but the control group's quota of {topology.quota_cores:g} "
            f"lets {most} run at once; ask for {most} or raise the quota"
        )
    return cores


def _affinity(root: Path) -> frozenset[int]:
    if root == ROOT and hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(os.getpid()))  # the process's, not this thread's own
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list" and value.strip():
            return frozenset(parse_cores(value.strip()))
    online = read_text(root / "sys/devices/system/cpu/online")
    return frozenset(parse_cores(online)) if online else frozenset(range(os.cpu_count() or 1))


def _logical_cpu(root: Path, cpu: int, node: int | None) -> LogicalCpu:
    """Return where a CPU sits. Its core is named by its lowest sibling: core_id repeats on every die."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    siblings = read_text(folder / "core_cpus_list") or read_text(folder / "thread_siblings_list")
    socket = _integer(read_text(folder / "physical_package_id"))
    socket = socket if socket is not None and socket >= 0 else 0  # some ARM firmware says -1
    core = min(parse_cores(siblings)) if siblings else cpu
    return LogicalCpu(socket=socket, node=socket if node is None else node, core=core, cpu=cpu)


def _nodes(root: Path) -> dict[int, int]:
    """Return the NUMA node of every CPU that the system names one for."""
    nodes: dict[int, int] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        node, cpus = _integer(folder.name.removeprefix("node")), read_text(folder / "cpulist")
        if node is not None and cpus:
            nodes.update(dict.fromkeys(parse_cores(cpus), node))
    return nodes


def _cpu_model(root: Path) -> str:
    """Return the processor's name; ARM kernels give only numbers for who made it and which part it is."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    parts = [fields[key] for key in ("CPU implementer", "CPU part") if key in fields]
    return fields.get("model name") or fields.get("Model") or " ".join(parts)


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
