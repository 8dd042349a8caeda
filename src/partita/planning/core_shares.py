"""Which cores each of several models gets: as many as were decided, and as few that move as can be."""

from collections import Counter
from collections.abc import Mapping, Sequence

from partita.core.topology import Topology

Cores = tuple[int, ...]


def even_counts(cores: int, now: Mapping[str, int]) -> dict[str, int]:
    """Return an even share for everyone, at least 1; what is left over goes to those that have most now."""
    each, rest = divmod(cores, len(now))
    favoured = sorted(now, key=lambda name: -now[name])[:rest] if each else []
    return {name: max(1, each) + (name in favoured and each > 0) for name in now}


def hand_out(
    counts: Mapping[str, int], now: Mapping[str, Cores], cores: Sequence[int], topology: Topology
) -> dict[str, Cores]:
    """Return so many cores for everyone, whose own they are.

    Each keeps what it has of them, those of its fullest socket first, and gets the rest from the socket where
    it has most. Of a core that two have, the first in order keeps it. There must be enough of them.
    """
    assert sum(counts.values()) <= len(cores), (counts, cores)
    socket_of = {cpu.cpu: cpu.socket for cpu in topology.cpus}
    free = list(cores)
    shares: dict[str, list[int]] = {}
    for name, count in counts.items():
        own = [core for core in now.get(name, ()) if core in free]
        shares[name] = _fullest_first(own, own, socket_of)[:count]
        free = [core for core in free if core not in shares[name]]
    for name in sorted(counts, key=lambda name: -counts[name]):
        missing = counts[name] - len(shares[name])
        more = _fullest_first(free, shares[name] or free, socket_of)[:missing]
        shares[name] += more
        free = [core for core in free if core not in more]
    return {name: tuple(sorted(shares[name])) for name in counts}


def _fullest_first(cores: Sequence[int], own: Sequence[int], socket_of: Mapping[int, int]) -> list[int]:
    """Return cores in order of how many of `own` are on their socket."""
    per_socket = Counter(socket_of.get(core, 0) for core in own)
    return sorted(cores, key=lambda core: (-per_socket[socket_of.get(core, 0)], core))


def share_out(counts: Mapping[str, int], now: Mapping[str, Cores], cores: Sequence[int]) -> dict[str, Cores]:
    """Return so many cores for everyone, shared with others as evenly as can be.

    Each stays where it is as long as that is even.
    """
    users = dict.fromkeys(cores, 0)
    most = -(-sum(min(count, len(cores)) for count in counts.values()) // len(cores))
    shares: dict[str, list[int]] = {}
    for name, count in counts.items():
        own = [core for core in now.get(name, ()) if users.get(core, most) < most]
        shares[name] = own[: min(count, len(cores))]
        for core in shares[name]:
            users[core] += 1
    for name, count in counts.items():
        while len(shares[name]) < min(count, len(cores)):
            others = [core for core in cores if core not in shares[name]]
            chosen = min(others, key=lambda core: (users[core], core))
            shares[name].append(chosen)
            users[chosen] += 1
    return {name: tuple(sorted(shares[name])) for name in counts}
