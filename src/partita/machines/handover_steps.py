"""What the handover tells the engine to do, and what it announces."""

from dataclasses import dataclass

from partita.core.plan import InstanceSpec, Plan


@dataclass(frozen=True, slots=True)
class Load:
    """Start a worker that has no part in the dispatch; `loaded` or `lost` follows."""

    number: int
    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class Seat:
    """Let a loaded instance take batches, on its cores, as this spec says."""

    number: int
    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class Reseat:
    """An instance in the dispatch takes batches as this spec says from now on, even if it was retiring."""

    number: int
    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class Retire:
    """Give it no new batch; `drained` follows, at once if it has nothing in hand."""

    number: int


@dataclass(frozen=True, slots=True)
class Unseat:
    """Take a drained instance out of the dispatch and give its cores back; its worker stays for now."""

    number: int


@dataclass(frozen=True, slots=True)
class End:
    """End the worker, which has nothing in hand and may still be loading; `lost` follows."""

    number: int


@dataclass(frozen=True, slots=True)
class Accepting:
    """All instances of this plan take batches, and no others do."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Finished:
    """The last instance that this plan has no use for has given its cores back."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class RolledBack:
    """This plan could not be set up; the plan before it is still, or again, in force."""

    plan: Plan
    reason: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another plan was asked for before this one was accepting."""

    plan: Plan


Instruction = Load | Seat | Reseat | Retire | Unseat | End | Accepting | Finished | RolledBack | Superseded
