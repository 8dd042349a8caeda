"""Machines described by files: what the process may use of them."""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import InvalidInput
from partita.core.topology import LogicalCpu, Topology
from partita.system.cgroups import cpu_quota, memory_limit
from partita.system.cpus import (
    allowed_cpus,
    format_cores,
    parse_cores,
    pin,
    read_topology,
    select_cores,
    wake_promptly,
)
from partita.system.memory import available_bytes, resident_bytes

GIB = 1 << 30


class Machine:
    """Writes the files of a machine below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mountinfo: list[str] = []
        self._cgroup: list[str] = []

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def cpus(self, *, sockets: int, cores: int, smt: bool = False) -> None:
        """Number CPUs as Linux does: all first hyperthreads, then all second ones."""
        physical = sockets * cores
        for cpu in range(physical * (2 if smt else 1)):
            core = cpu % physical
            folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
            self.write(f"{folder}/physical_package_id", str(core // cores))
            self.write(f"{folder}/core_id", str(core % cores))
            self.write(f"{folder}/core_cpus_list", f"{core},{core + physical}" if smt else str(core))
        for socket in range(sockets):
            own = [c for c in range(physical * (2 if smt else 1)) if c % physical // cores == socket]
            self.write(f"sys/devices/system/node/node{socket}/cpulist", format_cores(own))
        self.affinity(f"0-{physical * (2 if smt else 1) - 1}")

    def affinity(self, cpus: str) -> None:
        self.write("proc/self/status", f"Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}")

    def mount(self, at: str, *, controllers: str | None, group: str, inside: str = "/") -> None:
        """Mount a hierarchy: version 1 for named controllers, version 2 for None."""
        kind = "cgroup2 cgroup2 rw,nsdelegate" if controllers is None else f"cgroup cgroup rw,{controllers}"
        number = len(self._mountinfo) + 30
        self._mountinfo.append(f"{number} 23 0:{number} {inside} {at} rw,relatime shared:9 - {kind}")
        self._cgroup.append(f"{0 if controllers is None else number}:{controllers or ''}:{group}")
        self.write("proc/self/mountinfo", "\n".join(["23 1 8:1 / / rw - ext4 /dev/sda rw", *self._mountinfo]))
        self.write("proc/self/cgroup", "\n".join(self._cgroup))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_two_sockets_of_16_cores_with_hyperthreads(machine: Machine) -> None:
    machine.cpus(sockets=2, cores=16, smt=True)
    machine.write("proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {60 * GIB // 1024} kB")
    machine.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Xeon Gold 6142\n\nprocessor\t: 1")
    topology = read_topology(machine.root)
    assert len(topology.cpus) == 64
    assert topology.sockets == (0, 1)
    assert topology.usable_cores == 32
    assert topology.quota_cores is None
    assert topology.memory_bytes == 64 * GIB
    assert topology.cpu_model == "Xeon Gold 6142"
    assert [c.cpu for c in topology.core_order()] == list(range(64))
    assert {c.node for c in topology.cpus if c.socket == 1} == {1}
    assert select_cores(topology, None) == tuple(range(32))


def test_affinity_is_cut_by_the_cpu_set(machine: Machine) -> None:
    machine.cpus(sockets=2, cores=16, smt=True)
    machine.affinity("0-7,32-39")
    machine.mount("/sys/fs/cgroup/cpuset", controllers="cpuset", group="/pod")
    machine.write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-63")
    machine.write(
        "sys/fs/cgroup/cpuset/pod/cpuset.cpus", "4-40"
    )  # without CPUs 0 to 3: their cores keep one thread
    topology = read_topology(machine.root)
    assert [(c.core, c.cpu) for c in topology.cpus] == [
        *((core, core + 32) for core in range(4)),
        *((core, cpu) for core in range(4, 8) for cpu in (core, core + 32)),
    ]
    assert topology.usable_cores == 8


def test_one_and_a_half_cores_are_one(machine: Machine) -> None:
    machine.cpus(sockets=1, cores=4)
    machine.mount("/sys/fs/cgroup", controllers=None, group="/app")
    machine.write("sys/fs/cgroup/app/cpu.max", "150000 100000")
    topology = read_topology(machine.root)
    assert topology.quota_cores == 1.5
    assert topology.usable_cores == 1


def test_half_a_core_is_still_one(machine: Machine) -> None:
    machine.cpus(sockets=1, cores=4)
    machine.mount("/sys/fs/cgroup", controllers=None, group="/")
    machine.write("sys/fs/cgroup/cpu.max", "50000 100000")
    assert read_topology(machine.root).usable_cores == 1


def test_version_1_quota_with_its_own_period(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup/cpu,cpuacct", controllers="cpu,cpuacct", group="/a/b")
    machine.write("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "75000")
    machine.write("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "25000")
    assert cpu_quota(machine.root) == 3.0


def test_version_1_without_a_quota(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup/cpu", controllers="cpu", group="/")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cpu_quota(machine.root) is None


def test_the_least_limit_on_the_way_up_counts(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup", controllers=None, group="/slice/pod/container")
    machine.write("sys/fs/cgroup/slice/cpu.max", "800000 100000")
    machine.write("sys/fs/cgroup/slice/pod/cpu.max", "250000 100000")
    machine.write("sys/fs/cgroup/slice/pod/container/cpu.max", "max 100000")
    machine.write("sys/fs/cgroup/slice/memory.max", str(2 * GIB))
    machine.write("sys/fs/cgroup/slice/pod/memory.max", str(4 * GIB))
    machine.write("sys/fs/cgroup/slice/pod/container/memory.max", "max")
    assert cpu_quota(machine.root) == 2.5
    assert memory_limit(machine.root) == 2 * GIB


def test_a_sibling_groups_limit_is_not_ours(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup", controllers=None, group="/ours")
    machine.write("sys/fs/cgroup/theirs/cpu.max", "100000 100000")
    machine.write("sys/fs/cgroup/ours/cpu.max", "max 100000")
    assert cpu_quota(machine.root) is None


def test_hybrid_hierarchies_are_both_read(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup/cpu", controllers="cpu", group="/a")
    machine.mount("/sys/fs/cgroup/memory", controllers="memory", group="/b")
    machine.mount("/sys/fs/cgroup/unified", controllers=None, group="/c")
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000")
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000")
    machine.write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", str(3 * GIB))
    machine.write("sys/fs/cgroup/unified/c/cpu.max", "300000 100000")
    assert cpu_quota(machine.root) == 3.0
    assert memory_limit(machine.root) == 3 * GIB


def test_a_container_sees_its_group_at_the_mount(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup/cpu", controllers="cpu", group="/docker/abc/x", inside="/docker/abc")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "600000")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    machine.write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "200000")
    machine.write("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000")
    assert cpu_quota(machine.root) == 2.0


@pytest.mark.parametrize("group", ["/../../elsewhere", "/other/group"])
def test_a_group_that_the_mount_does_not_show_leaves_the_mount(machine: Machine, group: str) -> None:
    machine.mount("/sys/fs/cgroup", controllers=None, group=group, inside="/seen")
    machine.write("sys/fs/cgroup/cpu.max", "200000 100000")
    machine.write("elsewhere/cpu.max", "100000 100000")
    assert cpu_quota(machine.root) == 2.0


def test_a_mount_point_with_a_space(machine: Machine) -> None:
    machine.mount("/sys/my\\040groups", controllers=None, group="/")
    machine.write("sys/my groups/cpu.max", "200000 100000")
    assert cpu_quota(machine.root) == 2.0


def test_version_1s_no_limit_is_no_limit(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup/memory", controllers="memory", group="/")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    machine.write("proc/meminfo", "MemTotal: 1024 kB")
    assert memory_limit(machine.root) is None
    assert read_topology(machine.root).memory_bytes == 1 << 20


def test_available_memory_is_what_the_group_leaves(machine: Machine) -> None:
    machine.mount("/sys/fs/cgroup", controllers=None, group="/app")
    machine.write("proc/meminfo", f"MemTotal: {8 * GIB // 1024} kB\nMemAvailable: {6 * GIB // 1024} kB")
    machine.write("sys/fs/cgroup/app/memory.max", str(2 * GIB))
    machine.write("sys/fs/cgroup/app/memory.current", str(GIB))
    assert available_bytes(machine.root) == GIB
    machine.write("sys/fs/cgroup/app/memory.current", str(3 * GIB))
    assert available_bytes(machine.root) == 0


def test_missing_files_are_the_simplest_machine(machine: Machine) -> None:
    machine.affinity("0-2")
    topology = read_topology(machine.root)
    assert topology.cpus == tuple(LogicalCpu(socket=0, node=0, core=c, cpu=c) for c in range(3))
    assert topology.quota_cores is None
    assert topology.memory_bytes is None
    assert topology.cpu_model == ""


def test_an_empty_root_still_has_a_cpu(tmp_path: Path) -> None:
    assert read_topology(tmp_path).usable_cores >= 1


@pytest.mark.parametrize("text", ["garbage", "", "max", "1 0", "-5 100000"])
def test_nonsense_quotas_are_none(machine: Machine, text: str) -> None:
    machine.mount("/sys/fs/cgroup", controllers=None, group="/")
    machine.write("sys/fs/cgroup/cpu.max", text)
    assert cpu_quota(machine.root) is None


def test_an_arm_machine_without_a_model_name_or_socket(machine: Machine) -> None:
    machine.affinity("0-1")
    machine.write("proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c")
    machine.write("sys/devices/system/cpu/cpu1/topology/physical_package_id", "-1")
    topology = read_topology(machine.root)
    assert topology.cpu_model == "0x41 0xd0c"
    assert topology.sockets == (0,)


def test_this_machine() -> None:
    topology = read_topology()
    assert {c.cpu for c in topology.cpus} <= os.sched_getaffinity(0)
    assert topology.memory_bytes
    assert topology.memory_bytes > 1 << 28
    assert (available_bytes() or 0) <= topology.memory_bytes


# --- lists of cores -------------------------------------------------------------------------------


def test_parse_and_format_examples() -> None:
    assert parse_cores("0-3,8") == (0, 1, 2, 3, 8)
    assert parse_cores(" 3 , 1 - 2, 2") == (1, 2, 3)
    assert format_cores([8, 0, 1, 2, 3]) == "0-3,8"
    assert format_cores([]) == ""


@given(st.sets(st.integers(0, 300), min_size=1))
def test_format_then_parse_is_the_same_set(cpus: set[int]) -> None:
    assert parse_cores(format_cores(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "0x2", "1-2-3", "0-99999999", "²"])
def test_bad_lists_say_what_is_wrong(text: str) -> None:
    with pytest.raises(InvalidInput, match="cores"):
        parse_cores(text)


def _flat(cpus: int, quota: float | None = None) -> Topology:
    return Topology(
        cpus=tuple(LogicalCpu(socket=0, node=0, core=c % 4, cpu=c) for c in range(cpus)), quota_cores=quota
    )


def test_a_number_says_how_many_and_a_list_says_which() -> None:
    topology = _flat(8)  # 4 cores with 2 hyperthreads each
    assert select_cores(topology, None) == (0, 1, 2, 3)
    assert select_cores(topology, "2") == (0, 1)
    assert select_cores(topology, "6") == (0, 1, 2, 3, 4, 5)
    assert select_cores(topology, "2,") == (2,)
    assert select_cores(topology, "5-7") == (5, 6, 7)


@pytest.mark.parametrize(("wanted", "reason"), [("0", "1 to 8"), ("9", "1 to 8"), ("6-9", "CPU 8-9")])
def test_cores_that_are_not_there(wanted: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        select_cores(_flat(8), wanted)


@pytest.mark.parametrize("wanted", ["3", "0-2"])
def test_more_cores_than_the_quota_allows(wanted: str) -> None:
    assert select_cores(_flat(4, 2.5), "2") == (0, 1)
    with pytest.raises(InvalidInput, match=r"quota of 2\.5 lets 2"):
        select_cores(_flat(4, 2.5), wanted)


# --- pinning and processes ------------------------------------------------------------------------


def test_pin_and_refusal_leave_a_known_mask() -> None:
    before = os.sched_getaffinity(0)
    try:
        one = min(before)
        assert pin([one])
        assert allowed_cpus() == (one,)
        assert not pin([5000])
        assert not pin([-1])
        assert os.sched_getaffinity(0) == {one}
        assert pin([])
        assert os.sched_getaffinity(0) == {one}
    finally:
        os.sched_setaffinity(0, before)


def test_a_mask_that_the_kernel_cuts_is_refused_whole() -> None:
    before = os.sched_getaffinity(0)
    assert not pin([*before, 4000])
    assert os.sched_getaffinity(0) == before


def test_resident_memory_of_a_process() -> None:
    assert (resident_bytes(os.getpid()) or 0) > 1 << 20
    assert resident_bytes(2**22 + 1) is None


def test_cores_are_told_apart_by_socket_in_the_order_given() -> None:
    cpus = tuple(LogicalCpu(socket=n % 2, node=n % 2, core=n // 2, cpu=n) for n in range(8))
    topology = Topology(cpus=cpus)
    assert topology.by_socket((5, 2, 1, 0, 99)) == ((2, 0), (5, 1))
    assert topology.by_socket(()) == ()


def test_a_thread_that_wakes_promptly_leaves_its_children_as_they_would_be() -> None:
    with ThreadPoolExecutor(1) as one:  # a thread of its own: it cannot be undone
        is_done = one.submit(wake_promptly).result()
        nice, again = (
            one.submit(os.getpriority, os.PRIO_PROCESS, 0).result(),
            one.submit(wake_promptly).result(),
        )
        shown = one.submit(subprocess.check_output, [sys.executable, "-c", POLICY], text=True).result()
    assert (nice, again) == (os.getpriority(os.PRIO_PROCESS, 0), is_done)
    assert shown.split() == [str(os.SCHED_OTHER), str(nice)]
    assert is_done or platform.machine() not in ("x86_64", "aarch64") or nice < 0


POLICY = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
