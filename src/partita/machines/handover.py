"""From one plan to another without losing a request: Packrat's worker scaling and active-passive scaling.

A pure state machine for one member: the engine (or the simulator) tells it what happened and does what it
returns. It never touches requests; the dispatcher and the core leases see to those. A plan change is a
difference of multisets (Packrat, *Reconfiguration*):

- unchanged instances are not touched, and where only b changes the dispatcher alone hears of it;
- instances with cores of their own are added one by one, each at once in use, and those that are left over
  go one by one, devices in turn, once all that were added are there;
- where new instances need the cores of old ones, the new ones are all loaded first (*passive*); then, in one
  step, they take the new batches and the old ones get no more, finish what they have in hand, and go.

So at every moment some instances take work. A new plan may come at any time: what is loaded already, or not
yet gone, is used for it. When a worker cannot be loaded the plan that was in force last comes back.

Beyond the paper: instances of likely plans are kept loaded and *asleep* within a memory limit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from partita.core.plan import InstanceSpec, Plan
from partita.machines.handover_steps import (
    Accepting,
    End,
    Finished,
    Instruction,
    Load,
    Reseat,
    Retire,
    RolledBack,
    Seat,
    Superseded,
    Unseat,
)
from partita.machines.plan_difference import Difference, difference, round_robin, share_cores
from partita.machines.warm_set import WarmSet


class Stage(StrEnum):
    """Where one instance is, as far as plans are concerned. A worker that dies while active comes back."""

    LOADING = "loading"
    ASLEEP = "asleep"
    """Loaded, with no part in the dispatch and no claim to cores: passive, or kept warm."""
    ACTIVE = "active"
    """Takes batches, or will again when its worker is back."""
    RETIRING = "retiring"
    """Finishes what it has in hand."""
    ENDING = "ending"
    """Told to end; forgotten when its process is gone."""


@dataclass(slots=True)
class SwitchCounts:
    """What became of the plans that were asked for."""

    asked: int = 0
    accepted: int = 0
    failed: int = 0
    superseded: int = 0


class Handover:
    """The instances of one member, and the plan that they are to become.

    `plan` is in force: new batches go to its instances. `target` is what was asked for last; the two are the
    same unless a switch is under way. `next_number` gives numbers that are unique on this machine. Plans
    must be placed alike: an instance is known again by its cores.
    """

    def __init__(
        self,
        plan: Plan,
        numbers: Sequence[int],
        next_number: Callable[[], int],
        *,
        loads_at_once: int = 4,
    ) -> None:
        self.plan = plan
        self.target = plan
        self.counts = SwitchCounts()
        self.warm = WarmSet()
        self._next_number = next_number
        self._loads_at_once = loads_at_once
        self._specs: dict[int, InstanceSpec] = dict(zip(numbers, plan.instances, strict=True))
        self._stages: dict[int, Stage] = dict.fromkeys(self._specs, Stage.ACTIVE)
        self._hopeless: set[int] = set()
        """Active ones whose worker will not come back."""
        self._assigned: dict[int, InstanceSpec] = dict(self._specs)
        self._missing: list[InstanceSpec] = []
        self._is_accepting = True
        self._is_finished = True
        self._started = len(self._specs)
        self._gone = 0

    # --- looking ----------------------------------------------------------------------------------

    @property
    def is_accepting(self) -> bool:
        """Whether the plan that was asked for last is in force."""
        return self._is_accepting

    @property
    def is_finished(self) -> bool:
        """Whether it is, and nothing of an earlier plan is in the dispatch any more."""
        return self._is_finished

    def stage(self, number: int) -> Stage | None:
        """Where an instance is; None for one that is gone."""
        return self._stages.get(number)

    def spec(self, number: int) -> InstanceSpec:
        """What an instance is, as it was seated last."""
        return self._specs[number]

    def numbers(self, *stages: Stage) -> list[int]:
        """The instances in any of these stages, in order of their start; all instances without stages."""
        return [n for n, stage in self._stages.items() if not stages or stage in stages]

    def compare(self, plan: Plan) -> Difference:
        """What a switch to this plan would take: `missing` has to be loaded, and what is asleep woken."""
        tiers = [
            {n: self._specs[n] for n in self.numbers(stage) if n not in self._hopeless}
            for stage in (Stage.ACTIVE, Stage.RETIRING, Stage.ASLEEP, Stage.LOADING)
        ]
        return difference(tiers, plan.instances)

    # --- plans ------------------------------------------------------------------------------------

    def switch(self, plan: Plan) -> list[Instruction]:
        """Ask for another plan; also while a switch is under way, whose plan is then given up."""
        self.counts.asked += 1
        out: list[Instruction] = []
        if not self._is_accepting:
            self.counts.superseded += 1
            out.append(Superseded(self.target))
        self._aim(plan, self.compare(plan))
        self._advance(out)
        return out

    def refuse(self) -> None:
        """A plan was asked for that cannot even be tried."""
        self.counts.asked += 1
        self.counts.failed += 1

    def keep_warm(self, plans: Sequence[Plan], max_bytes: int) -> list[Instruction]:
        """Keep the instances of these plans loaded, the likeliest first, as far as the memory allows."""
        self.warm.want(plans, max_bytes)
        out: list[Instruction] = []
        self._advance(out)
        return out

    def _aim(self, plan: Plan, found: Difference) -> None:
        self.target = plan
        self._assigned = dict(found.assigned)
        self._missing = list(found.missing)
        self._is_accepting = self._is_finished = False

    # --- events -----------------------------------------------------------------------------------

    def loaded(self, number: int, resident_bytes: int = 0) -> list[Instruction]:
        """A worker has loaded its model. Told of active ones too, for what they hold in memory, bytes."""
        out: list[Instruction] = []
        if resident_bytes:
            self.warm.measured(self._specs[number], resident_bytes)
        if self._stages[number] is Stage.LOADING:
            self._stages[number] = Stage.ASLEEP
            self._advance(out)
        return out

    def drained(self, number: int, resident_bytes: int = 0) -> list[Instruction]:
        """A retiring instance has nothing in hand any more, and what its batches took is in its memory."""
        out: list[Instruction] = []
        if resident_bytes:
            self.warm.measured(self._specs[number], resident_bytes)
        if self._stages.get(number) is Stage.RETIRING:
            self._stages[number] = Stage.ASLEEP
            out.append(Unseat(number))
            self._advance(out)
        return out

    def lost(self, number: int, reason: str) -> list[Instruction]:
        """A worker's process is gone; the dispatcher has put back what it had in hand."""
        out: list[Instruction] = []
        stage = self._stages[number]
        if stage is Stage.ENDING:
            del self._stages[number], self._specs[number]
            self._gone += 1
        elif stage is not Stage.ACTIVE:  # it is not to be started again
            self._end(number, out, unseat=stage is Stage.RETIRING)
            self._replace(number, stage, reason, out)
        self._advance(out)
        return out

    def _replace(self, number: int, stage: Stage, reason: str, out: list[Instruction]) -> None:
        if number not in self._assigned:
            if stage is not Stage.RETIRING:
                self.warm.failed(self._specs[number])
        elif stage is Stage.RETIRING:  # it had served well: another one like it will
            self._missing.append(self._assigned.pop(number))
        else:
            self._roll_back(reason, out)

    def gave_up(self, number: int) -> list[Instruction]:
        """An active instance's worker will not come back; the next plan does not count on it."""
        if self._stages.get(number) is Stage.ACTIVE:
            self._hopeless.add(number)
        return []

    def _roll_back(self, reason: str, out: list[Instruction]) -> None:
        self.counts.failed += 1
        out.append(RolledBack(self.target, reason))
        # Nothing of the plan in force retires before the next one is accepting: all of it is there.
        found = difference([{n: self._specs[n] for n in self.numbers(Stage.ACTIVE)}], self.plan.instances)
        assert not found.missing, (self.plan, self._stages)
        self._aim(self.plan, found)
        self._is_accepting = True

    # --- one step after another -------------------------------------------------------------------

    def _advance(self, out: list[Instruction]) -> None:
        self._load_missing(out)
        if not self._is_accepting:
            self._join_early(out)
            self._take_over(out)
        if self._is_accepting:
            self._retire(out)
            self._finish(out)
        self._tend_warm(out)

    def _to_go(self) -> list[int]:
        return [n for n in self.numbers(Stage.ACTIVE) if n not in self._assigned]

    def _load_missing(self, out: list[Instruction]) -> None:
        loading = [n for n in self.numbers(Stage.LOADING) if n in self._assigned]
        while self._missing:
            at_once = 1 if self._joins_alone(self._missing[0]) else self._loads_at_once
            if len(loading) >= at_once:
                return
            spec = self._missing.pop(0)
            loading.append(self._load(spec, out))
            self._assigned[loading[-1]] = spec

    def _load(self, spec: InstanceSpec, out: list[Instruction]) -> int:
        number = self._next_number()
        assert number not in self._stages, number
        self._specs[number] = spec
        self._stages[number] = Stage.LOADING
        self._started += 1
        out.append(Load(number, spec))
        return number

    def _joins_alone(self, spec: InstanceSpec) -> bool:
        """Whether it needs no core of an instance that is to go: then it is of use as soon as it is there."""
        return not any(share_cores(spec, self._specs[n]) for n in self._to_go())

    def _join_early(self, out: list[Instruction]) -> None:
        for number, spec in self._assigned.items():
            if self._stages[number] is Stage.ASLEEP and self._joins_alone(spec):
                self._seat(number, spec, out)

    def _seat(self, number: int, spec: InstanceSpec, out: list[Instruction]) -> None:
        """Have it take batches as the spec says, whatever it did before."""
        stage = self._stages[number]
        if stage is Stage.ASLEEP:
            out.append(Seat(number, spec))
        elif stage is Stage.RETIRING or self._specs[number] != spec:
            out.append(Reseat(number, spec))
        self._specs[number] = spec
        self._stages[number] = Stage.ACTIVE

    def _take_over(self, out: list[Instruction]) -> None:
        if self._missing or any(self._stages[n] is Stage.LOADING for n in self._assigned):
            return
        for number, spec in self._assigned.items():
            self._seat(number, spec, out)
        self._is_accepting = True
        self.plan = self.target
        self.counts.accepted += 1
        self._retire(out)
        out.append(Accepting(self.plan))

    def _retire(self, out: list[Instruction]) -> None:
        """Those whose cores others wait for go at once, the rest one by one."""
        to_go = self._to_go()
        for number in to_go:
            if any(share_cores(self._specs[number], spec) for spec in self._assigned.values()):
                self._retire_one(number, out)
        left = [n for n in to_go if self._stages[n] is Stage.ACTIVE]
        if left and not self.numbers(Stage.RETIRING):
            self._retire_one(round_robin(left, self._specs)[0], out)

    def _retire_one(self, number: int, out: list[Instruction]) -> None:
        self._stages[number] = Stage.RETIRING
        self._hopeless.discard(number)
        out.append(Retire(number))

    def _finish(self, out: list[Instruction]) -> None:
        if not self._is_finished and not self._to_go() and not self.numbers(Stage.RETIRING):
            self._is_finished = True
            out.append(Finished(self.plan))

    # --- warm instances ---------------------------------------------------------------------------

    def _tend_warm(self, out: list[Instruction]) -> None:
        """End what is asleep or loading for nothing; with no switch under way, load what is to be warm."""
        spare = {
            n: self._specs[n] for n in self.numbers(Stage.ASLEEP, Stage.LOADING) if n not in self._assigned
        }
        keep, load = self.warm.choose(spare, [*self._assigned.values(), *self._missing])
        for number in spare:
            if number not in keep or (self._stages[number] is Stage.LOADING and not self._is_finished):
                self._end(number, out)
        if self._is_finished and load is not None and not self.numbers(Stage.LOADING):
            self._load(load, out)

    def _end(self, number: int, out: list[Instruction], *, unseat: bool = False) -> None:
        if unseat:
            out.append(Unseat(number))
        self._stages[number] = Stage.ENDING
        out.append(End(number))

    # --- laws -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that no instance and no plan is lost, and that some instance takes work."""
        assert self._started == len(self._stages) + self._gone, (self._started, self._stages, self._gone)
        assert self._stages.keys() == self._specs.keys()
        assert self.numbers(Stage.ACTIVE), "no instance takes work"
        counts = self.counts
        ended = counts.accepted + counts.failed + counts.superseded
        assert counts.asked == ended + (not self._is_accepting), (counts, self._is_accepting)
        wanted = sorted([*self._assigned.values(), *self._missing])
        assert wanted == sorted(self.target.instances), "the plan that was asked for is made in full"
        live = (Stage.ACTIVE, Stage.RETIRING, Stage.ASLEEP, Stage.LOADING)
        assert all(self._stages[n] in live for n in self._assigned)
        if self._is_finished:
            active = [self._specs[n] for n in self.numbers(Stage.ACTIVE)]
            assert sorted(active) == sorted(self.plan.instances), (active, self.plan)
            assert not self._to_go()
            assert not self.numbers(Stage.RETIRING)
        if self._is_accepting:
            assert self.target is self.plan
            assert all(self._stages[n] is Stage.ACTIVE for n in self._assigned)


__all__ = [
    "Accepting",
    "End",
    "Finished",
    "Handover",
    "Instruction",
    "Load",
    "Reseat",
    "Retire",
    "RolledBack",
    "Seat",
    "Stage",
    "Superseded",
    "SwitchCounts",
    "Unseat",
]
