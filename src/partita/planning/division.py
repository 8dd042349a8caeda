"""The division of a machine's cores among its models while they serve (DESIGN §2 and §4).

Pure: whoever drives it says who is served and what is asked of each, and carries out what it says. The cores
are divided anew when a model comes or goes, when its profile appears or the cores change, at once; and when
the loads have changed, if that is worth it: the rules of a model's own switches keep it from flip-flopping.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Any

from partita.core.errors import NoFeasiblePlan
from partita.core.topology import Topology
from partita.planning.core_shares import Cores, even_counts, hand_out, share_out
from partita.planning.joint import Demand, JointPlan, split, weighted_ms
from partita.planning.switching import SwitchRules, is_within

LOG_ENTRIES = 256


class Cause(StrEnum):
    """Why the division was looked at."""

    STARTED = "started"
    CAME = "came"
    WENT = "went"
    PROFILED = "profiled"
    CORES = "cores"
    """Other cores may be used than before."""
    LOAD = "load"


class Outcome(StrEnum):
    """What came of it, as a word to count and search by."""

    DIVIDED = "divided"
    FITS = "fits"
    """Everyone has what it should have."""
    SMALL_GAIN = "small_gain"
    DWELL = "dwell"
    """The last division was a short while ago."""
    UNSETTLED = "unsettled"
    """Looked at again before anything is done: the load may go as it came."""
    BACKING_OFF = "backing_off"
    FAILED = "failed"
    """Some model could not be moved."""
    NO_PLAN = "no_plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One model that is served."""

    name: str
    cores: Cores
    """What it has now."""
    demand: Demand | None = None
    """What is asked of it; None = nothing is known of it, and it gets an even share."""
    is_fixed: bool = False
    """Its cores are its own by somebody's word."""
    own: Cores | None = None
    """Where it is fixed: which those are; None = what it has now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one model has and gets."""

    name: str
    before: Cores
    cores: Cores
    batch: int | None = None
    rate: float = 0.0
    weight: float = 1.0
    weighted_ms: float | None = None

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "model": self.name,
            "before": list(self.before),
            "cores": list(self.cores),
            "batch": self.batch,
            "items_per_s": round(self.rate, 3),
            "weight": self.weight,
            "weighted_ms": None if self.weighted_ms is None else round(self.weighted_ms, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """What was seen, what is done, and why."""

    number: int
    now_s: float
    cause: Cause
    outcome: Outcome
    text: str
    shares: tuple[Share, ...]
    shared: bool = False
    """Some models execute on the same cores, in turns."""
    worst_before_ms: float | None = None
    worst_ms: float | None = None
    """Largest weighted latency expected; None where it is not known, or no plan carries the load."""
    gain: float | None = None
    """(Worst before ÷ worst now) − 1; None where one of them is not known."""
    repeated: int = field(default=1, compare=False)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "number": self.number,
            "time_s": round(self.now_s, 6),
            "cause": str(self.cause),
            "outcome": str(self.outcome),
            "text": self.text,
            "repeated": self.repeated,
            "shared": self.shared,
            "worst_before_ms": _rounded(self.worst_before_ms),
            "worst_ms": _rounded(self.worst_ms),
            "gain": _rounded(self.gain),
            "shares": [share.document() for share in self.shares],
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass(frozen=True, slots=True)
class _Wanted:
    cores: Mapping[str, Cores]
    joint: JointPlan | None
    shared: bool
    text: str


class Division:
    """Decides who gets which cores, and keeps a log of it."""

    def __init__(
        self, rules: SwitchRules | None = None, *, interval_s: float = 5.0, log_entries: int = LOG_ENTRIES
    ) -> None:
        self.rules = rules or SwitchRules()
        self.interval_s = interval_s
        self.log: deque[Divided] = deque(maxlen=log_entries)
        self.divisions = 0
        self._divided_s: float | None = None
        self._failures = 0
        self._failed_s = 0.0
        self._candidate: dict[str, int] = {}
        """Who was to get cores (1) and who to give some up (-1) at the last look, where that was not done."""
        self._next_number = 1

    def decide(
        self,
        parties: Sequence[Party],
        cores: Sequence[int],
        topology: Topology,
        *,
        now_s: float,
        cause: Cause,
    ) -> Divided:
        """Return who is to have which cores. One that says `DIVIDED` counts as done, or has `failed`."""
        try:
            wanted = wanted_cores(parties, cores, topology)
        except NoFeasiblePlan as error:
            shares = tuple(Share(name=p.name, before=p.cores, cores=p.cores) for p in parties)
            return self._note(now_s, cause, Outcome.NO_PLAN, str(error), shares)
        shares = _shares(parties, wanted)
        before_ms, worst_ms = _worst_before(parties, cores, wanted.joint), _worst(wanted.joint)
        gain = None
        if before_ms is not None and worst_ms is not None:
            gain = inf if before_ms == inf else before_ms / worst_ms - 1.0
        outcome, text = self._judge(shares, wanted, gain, now_s, cause)
        if outcome is not Outcome.UNSETTLED:
            self._candidate = {}  # the two looks that have to agree are two in succession
        if outcome is Outcome.DIVIDED:
            self.divisions += 1
            self._divided_s = now_s
        figures = {"worst_before_ms": before_ms, "worst_ms": worst_ms, "gain": gain}
        known = {name: value for name, value in figures.items() if value is not None and isfinite(value)}
        return self._note(now_s, cause, outcome, text, shares, shared=wanted.shared, **known)

    def failed(self, divided: Divided, now_s: float, reason: str) -> None:
        """A model could not be moved: what is left of the division is not done."""
        self._failures += 1
        self._failed_s = now_s
        shares = tuple(
            Share(name=share.name, before=share.before, cores=share.before) for share in divided.shares
        )
        self._note(now_s, divided.cause, Outcome.FAILED, reason, shares)

    def succeeded(self) -> None:
        """Everyone has what it should have."""
        self._failures = 0

    def may_try_again(self, now_s: float) -> bool:
        """Whether the pause after a division that failed is over."""
        return not self._failures or now_s >= self._failed_s + self.rules.backoff_s(self._failures)

    # --- judging ----------------------------------------------------------------------------------

    def _judge(
        self, shares: Sequence[Share], wanted: _Wanted, gain: float | None, now_s: float, cause: Cause
    ) -> tuple[Outcome, str]:
        """Return what to do. Only a change of the load has to be worth it, and waits."""
        if all(share.before == share.cores for share in shares):
            return Outcome.FITS, f"everyone has the cores that it should have ({wanted.text})"
        what = _in_words(shares, wanted, gain)
        if cause is not Cause.LOAD:
            return Outcome.DIVIDED, what
        if gain is not None and gain < self.rules.gain:
            return Outcome.SMALL_GAIN, f"{what}: less than the {self.rules.gain:.0%} that it has to gain"
        turn = {share.name: _sign(len(share.cores) - len(share.before)) for share in shares}
        if not self.may_try_again(now_s):
            return Outcome.BACKING_OFF, f"{what}, but the last division failed"
        dwell_s = self.rules.dwell_intervals * self.interval_s
        if is_within(self._divided_s, least_s=dwell_s, now_s=now_s):
            return Outcome.DWELL, f"{what}, but between two divisions are at least {dwell_s:.3g} s"
        if turn != self._candidate:
            self._candidate = turn
            return Outcome.UNSETTLED, f"{what}, if it stays so"
        return Outcome.DIVIDED, what

    def _note(
        self, now_s: float, cause: Cause, outcome: Outcome, text: str, shares: tuple[Share, ...], **more: Any
    ) -> Divided:
        """Log it; one that does nothing, like the one before it, is counted instead."""
        divided = Divided(
            number=self._next_number,
            now_s=now_s,
            cause=cause,
            outcome=outcome,
            text=text,
            shares=shares,
            **more,
        )
        before = self.log[-1] if self.log else None
        if before is not None and outcome is not Outcome.DIVIDED and _are_alike(before, divided):
            self.log[-1] = divided = replace(divided, number=before.number, repeated=before.repeated + 1)
            return divided
        self._next_number += 1
        self.log.append(divided)
        return divided


def even_shares(names: Sequence[str], cores: Sequence[int], topology: Topology) -> Mapping[str, Cores]:
    """Return which cores everyone should have as long as nothing is known of anybody."""
    return wanted_cores([Party(name=name, cores=()) for name in names], cores, topology).cores


def wanted_cores(parties: Sequence[Party], cores: Sequence[int], topology: Topology) -> _Wanted:
    """Return which cores everyone should have.

    Who is fixed keeps its own. Of the rest, those that nothing is known of get an even share, and the others
    are given what makes the worst weighted latency least; with fewer cores than models they share them.
    """
    fixed = {p.name: p.cores if p.own is None else p.own for p in parties if p.is_fixed}
    taken = {core for own in fixed.values() for core in own}
    pool = [core for core in cores if core not in taken] or list(cores)
    movable = [p for p in parties if not p.is_fixed]
    if not movable:
        return _Wanted(fixed, None, False, "all of them by hand")
    counts, joint, text = _counts(movable, len(pool))
    now = {p.name: p.cores for p in movable}
    is_shared = sum(counts.values()) > len(pool)
    found = share_out(counts, now, pool) if is_shared else hand_out(counts, now, pool, topology)
    return _Wanted({**fixed, **found}, joint, is_shared, text)


def _counts(parties: Sequence[Party], cores: int) -> tuple[dict[str, int], JointPlan | None, str]:
    now = {p.name: len(p.cores) for p in parties}
    known = [p.demand for p in parties if p.demand is not None]
    even = even_counts(cores, now)
    if not known:
        return even, None, "an even share for everyone: none has a profile"
    unknown = {p.name: even[p.name] for p in parties if p.demand is None}
    left = cores - sum(unknown.values())
    if left < len(known) and unknown:
        return even, None, "an even share for everyone: too few cores for more"
    joint = split(known, left)
    counts = {share.name: share.cores for share in joint.shares}
    _spend(counts, left - sum(counts.values()))
    text = joint.text + (f"; an even share for {', '.join(unknown)}, without a profile" if unknown else "")
    return {p.name: {**unknown, **counts}[p.name] for p in parties}, joint, text


def _spend(counts: dict[str, int], left: int) -> None:
    """Hand out cores that help nobody by what is known, to those that have fewest: the load may change."""
    for _ in range(left):
        counts[min(counts, key=lambda name: counts[name])] += 1


def _worst(joint: JointPlan | None) -> float | None:
    return None if joint is None else joint.worst_ms


def _worst_before(parties: Sequence[Party], cores: Sequence[int], joint: JointPlan | None) -> float | None:
    """Return the worst weighted latency with the cores of today; None where some are shared, or gone."""
    if joint is None:
        return None
    everyone = [core for p in parties for core in p.cores]
    if len(everyone) != len(set(everyone)) or not set(everyone) <= set(cores):
        return None
    known = [(p.demand, len(p.cores)) for p in parties if p.demand is not None and not p.is_fixed]
    return max(weighted_ms(demand, count, load_share=joint.load_share) for demand, count in known)


def _shares(parties: Sequence[Party], wanted: _Wanted) -> tuple[Share, ...]:
    joint = {share.name: share for share in wanted.joint.shares} if wanted.joint is not None else {}
    shares = []
    for party in parties:
        found, demand = joint.get(party.name), party.demand
        share = Share(name=party.name, before=party.cores, cores=wanted.cores[party.name])
        if found is not None and demand is not None:
            share = Share(
                name=party.name,
                before=party.cores,
                cores=share.cores,
                batch=found.plan.batch,
                rate=demand.rate,
                weight=demand.weight,
                weighted_ms=found.weighted_ms,
            )
        shares.append(share)
    return tuple(shares)


def _in_words(shares: Sequence[Share], wanted: _Wanted, gain: float | None) -> str:
    who = ", ".join(f"{s.name} {len(s.before)} → {len(s.cores)}" for s in shares)
    how = "" if gain is None or gain == 0.0 else f", worst weighted latency {_gained(gain)}"
    return f"cores {who}{how} ({wanted.text})"


def _sign(change: int) -> int:
    return (change > 0) - (change < 0)


def _gained(gain: float) -> str:
    return "with which the load can be carried" if gain == inf else f"{gain:.0%} better"


def _are_alike(one: Divided, other: Divided) -> bool:
    """Whether both came to the same."""
    return (one.cause, one.outcome) == (other.cause, other.outcome) and (
        [share.cores for share in one.shares] == [share.cores for share in other.shares]
    )
