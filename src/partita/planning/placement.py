"""The resource allocator (Packrat §3.4): which cores each instance of a plan is pinned to.

Instances are socket-local, spread over the sockets round robin, pairwise disjoint, and get one hyperthread
of every physical core before any second one. Cores that the user gave are respected.
"""

from collections.abc import Sequence
from dataclasses import replace

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import InstanceSpec, Plan
from partita.core.topology import LogicalCpu, Topology


def place(
    plan: Plan,
    topology: Topology,
    *,
    cores: Sequence[int] | None = None,
    across_sockets: bool = True,
) -> Plan:
    """Return the plan with every instance's cores assigned.

    `cores` are the logical CPUs to hand out, all usable ones by default. Instances that come with cores keep
    them. One that fits no single socket is spread over several only if `across_sockets`. Raises
    `InvalidInput` for given cores that are not allowed or overlap, `NoFeasiblePlan` where cores run out.
    """
    order = topology.core_order()
    known = {cpu.cpu: cpu for cpu in order}
    allowed = (
        list(order[: topology.usable_cores]) if cores is None else [known[c] for c in cores if c in known]
    )
    given = [i for i in plan.instances if i.cores]
    taken = _check_given(given, known)
    free = [cpu for cpu in allowed if cpu.cpu not in taken]
    placed = list(given)
    sockets = _SocketTurns(free)
    for instance in sorted((i for i in plan.instances if not i.cores), key=lambda i: -i.threads):
        chosen = sockets.take(instance.threads, across_sockets=across_sockets)
        if chosen is None:
            raise NoFeasiblePlan(
                f"no {instance.threads} free cores for an instance of plan {plan}; "
                f"{len(free)} cores are there for it in all"
            )
        placed.append(instance.placed(chosen))
    return replace(plan, instances=tuple(placed))


def _check_given(given: list[InstanceSpec], known: dict[int, LogicalCpu]) -> set[int]:
    taken: set[int] = set()
    for instance in given:
        for core in instance.cores:
            if core not in known:
                raise InvalidInput(f"core {core} is not allowed to this process; allowed: {sorted(known)}")
            if core in taken:
                raise InvalidInput(
                    f"core {core} is given to two instances; instances need cores of their own"
                )
        taken.update(instance.cores)
    return taken


class _SocketTurns:
    """Free cores by socket, handed out round robin."""

    def __init__(self, free: list[LogicalCpu]) -> None:
        self._by_socket: dict[int, list[int]] = {}
        for cpu in free:
            self._by_socket.setdefault(cpu.socket, []).append(cpu.cpu)
        self._turn = sorted(self._by_socket)

    def take(self, threads: int, *, across_sockets: bool) -> list[int] | None:
        """Take this many cores of the next socket that has them."""
        for index, socket in enumerate(self._turn):
            cores = self._by_socket[socket]
            if len(cores) >= threads:
                self._by_socket[socket] = cores[threads:]
                self._turn.append(self._turn.pop(index))
                return cores[:threads]
        total = sum(len(cores) for cores in self._by_socket.values())
        if not across_sockets or total < threads:
            return None
        chosen: list[int] = []
        for socket in self._turn:
            part = self._by_socket[socket][: threads - len(chosen)]
            self._by_socket[socket] = self._by_socket[socket][len(part) :]
            chosen += part
        return chosen
