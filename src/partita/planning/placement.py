"""The resource allocator (Packrat §3.4): which cores each instance of a plan is pinned to.

Instances are socket-local, spread over the sockets round robin, pairwise disjoint, and get one hyperthread
of every physical core before any second one. Cores that the user gave are respected.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import InstanceSpec, Plan
from partita.core.topology import LogicalCpu, Topology

ROAMING_MS = 1.0
"""Executions expected to be shorter than this are not bound to their cores."""


def place(
    plan: Plan,
    topology: Topology,
    *,
    cores: Sequence[int] | None = None,
    across_sockets: bool = True,
) -> Plan:
    """Return the plan with every instance's cores assigned.

    `cores` are the logical CPUs to hand out, in any order; by default one of every usable physical core.
    Instances that come with cores keep them. One of one thread whose executions are shorter than `ROAMING_MS`
    may run on every core of its socket that this plan was given: it would wait longer for a core that the
    head is just using than moving costs it (docs/decisions/0003-short-executions-roam.md).

    Where the instances do not fit into single sockets, some are spread over several, but only if
    `across_sockets`. Raises `InvalidInput` for cores that are unknown or named twice, `NoFeasiblePlan` where
    cores run out, or the quota lets fewer threads run at once.
    """
    threads, most = sum(instance.threads for instance in plan.instances), topology.most_at_once
    if most is not None and threads > most:
        raise NoFeasiblePlan(
            f"plan {plan} needs {threads} cores at once, and the control group's quota of "
            f"{topology.quota_cores:g} lets {most} run"
        )
    order = topology.core_order()
    known = {cpu.cpu: cpu for cpu in order}
    if cores is not None:
        _check_distinct(cores, known, "core {core} is to be handed out twice; name it once")
    given = [i for i in plan.instances if i.cores]
    taken = _check_distinct(
        (core for instance in given for core in instance.cores),
        known,
        "core {core} is given to two instances; instances need cores of their own",
    )
    allowed = order[: topology.usable_cores] if cores is None else [known[core] for core in sorted(cores)]
    sockets = _sockets([cpu for cpu in allowed if cpu.cpu not in taken], [known[core] for core in taken])
    wanted = sorted((i for i in plan.instances if not i.cores), key=lambda i: -i.threads)
    chosen = _choose([i.threads for i in wanted], sockets, across_sockets=across_sockets)
    if chosen is None:
        raise NoFeasiblePlan(_why_not(plan, [i.threads for i in wanted], sockets))
    roamed = topology.by_socket([cpu.cpu for cpu in allowed if cpu.cpu not in taken])
    placed = [
        instance.placed(cpus, _affinity(instance, cpus, plan, roamed))
        for instance, cpus in zip(wanted, chosen, strict=True)
    ]
    return replace(plan, instances=(*given, *placed))


def place_beside(
    plan: Plan, standing: Iterable[InstanceSpec], topology: Topology, *, cores: Sequence[int] | None = None
) -> Plan:
    """Place a plan so that as many as possible of the standing instances are part of it, cores and all.

    Their workers then serve on. Where the rest would not fit beside them, everything is placed anew. Errors
    are those of `place`.
    """
    free = [spec for spec in standing if spec.cores]
    instances: list[InstanceSpec] = []
    for wanted in plan.instances:
        like = [spec for spec in free if spec.threads == wanted.threads] if not wanted.cores else []
        if like:
            free.remove(like[0])
            instances.append(wanted.placed(like[0].cores, like[0].affinity))
        else:
            instances.append(wanted)
    try:
        kept = replace(plan, instances=tuple(instances))
        return place(kept, topology, cores=cores, across_sockets=False)
    except (InvalidInput, NoFeasiblePlan):
        return place(plan, topology, cores=cores)


def standing_on(instances: Iterable[InstanceSpec], cores: Sequence[int]) -> list[InstanceSpec]:
    """Return those instances that could stay where a model has only these cores, bound to them."""
    allowed = set(cores)
    return [
        one if allowed.issuperset(one.affinity) else replace(one, affinity=())
        for one in instances
        if allowed.issuperset(one.cores)
    ]


def _affinity(
    instance: InstanceSpec, cpus: tuple[int, ...], plan: Plan, sockets: Iterable[Sequence[int]]
) -> tuple[int, ...]:
    """Where an instance on these CPUs may run; empty = on them alone."""
    if plan.expected_ms is None or instance.threads > 1:
        return ()
    if plan.expected_ms / len(instance.executions) >= ROAMING_MS:
        return ()
    own = set(cpus)
    return next((tuple(cores) for cores in sockets if own < set(cores)), ())


@dataclass(frozen=True, slots=True)
class _Socket:
    """The free CPUs of one socket, those whose physical core is all idle first."""

    cpus: tuple[int, ...]
    idle: int
    """How many of them, from the front, are on a physical core of their own."""

    def take(self, threads: int) -> tuple[tuple[int, ...], "_Socket"]:
        return self.cpus[:threads], _Socket(self.cpus[threads:], max(0, self.idle - threads))


def _check_distinct(cores: Iterable[int], known: dict[int, LogicalCpu], twice: str) -> set[int]:
    seen: set[int] = set()
    for core in cores:
        if core not in known:
            raise InvalidInput(f"core {core} is not allowed to this process; allowed: {sorted(known)}")
        if core in seen:
            raise InvalidInput(twice.format(core=core))
        seen.add(core)
    return seen


def _sockets(free: list[LogicalCpu], taken: list[LogicalCpu]) -> list[_Socket]:
    busy = {(cpu.socket, cpu.core) for cpu in taken}
    idle: dict[int, list[int]] = {cpu.socket: [] for cpu in sorted(free)}
    shared: dict[int, list[int]] = {socket: [] for socket in idle}
    for cpu in free:
        key = (cpu.socket, cpu.core)
        (shared if key in busy else idle)[cpu.socket].append(cpu.cpu)
        busy.add(key)
    return [_Socket((*cpus, *shared[socket]), len(cpus)) for socket, cpus in idle.items()]


def _choose(
    threads: list[int], sockets: list[_Socket], *, across_sockets: bool
) -> list[tuple[int, ...]] | None:
    """Return CPUs for instances of these thread counts, most threads first; None if they do not fit."""
    if sum(threads) > sum(len(socket.cpus) for socket in sockets):
        return None
    local = _inside_sockets(threads, sockets, set())
    return local if local is not None or not across_sockets else _across_sockets(threads, sockets)


def _inside_sockets(
    threads: list[int], turns: list[_Socket], hopeless: set[tuple[int, ...]]
) -> list[tuple[int, ...]] | None:
    """Round robin over `turns`, stepping back where it leaves too small a rest for what is still to come."""
    if not threads:
        return []
    state = (len(threads), *sorted(len(socket.cpus) for socket in turns))
    if state in hopeless:
        return None
    fitting = [k for k, socket in enumerate(turns) if len(socket.cpus) >= threads[0]]
    for k in sorted(fitting, key=lambda k: turns[k].idle < threads[0]):
        cpus, left = turns[k].take(threads[0])
        rest = _inside_sockets(threads[1:], [*turns[:k], *turns[k + 1 :], left], hopeless)
        if rest is not None:
            return [cpus, *rest]
    hopeless.add(state)
    return None


def _across_sockets(threads: list[int], turns: list[_Socket]) -> list[tuple[int, ...]]:
    """Round robin, where what fits no single socket takes the rest of one after the other."""
    chosen: list[tuple[int, ...]] = []
    for count in threads:
        fitting = [k for k, socket in enumerate(turns) if len(socket.cpus) >= count]
        parts: list[tuple[int, ...]] = []
        for k in fitting[:1] or range(len(turns)):
            cpus, turns[k] = turns[k].take(count - sum(map(len, parts)))
            parts.append(cpus)
        if fitting:
            turns.append(turns.pop(fitting[0]))
        chosen.append(tuple(cpu for part in parts for cpu in part))
    return chosen


def _why_not(plan: Plan, threads: list[int], sockets: list[_Socket]) -> str:
    free = [len(socket.cpus) for socket in sockets]
    if sum(threads) > sum(free):
        return f"plan {plan} needs {sum(threads)} free cores, but {sum(free)} are there for it"
    return f"no socket has room for every instance of plan {plan}: the sockets have {free} free cores"
