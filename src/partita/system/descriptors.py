"""How many files and sockets the process may have open."""

import resource


def allow_descriptors(wanted: int) -> int:
    """Raise the soft limit to `wanted` where the hard one lets it; returns what is allowed then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # as some sandboxes answer
        return soft
    return allowed
