"""Changes of plan with real IO: does what the handover says, and keeps a record of every switch."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from partita.core.clock import Clock
from partita.core.errors import SwitchFailed
from partita.core.plan import InstanceSpec, Plan
from partita.engine.pacing import Pacer
from partita.machines.handover import (
    Accepting,
    End,
    Finished,
    Handover,
    Instruction,
    Load,
    Reseat,
    Retire,
    RolledBack,
    Seat,
    Stage,
    Superseded,
    Unseat,
)
from partita.machines.leases import CoreLeases
from partita.system.memory import available_bytes

if TYPE_CHECKING:
    from partita.engine.instance import Instance
    from partita.engine.member import Member

log = logging.getLogger("partita")

END_LIMIT_S = 5.0
"""A worker that was told to end and has not by then is killed."""
SWITCHES_KEPT = 100


class Outcome(StrEnum):
    """What became of a switch."""

    UNDER_WAY = "under_way"
    ACCEPTING = "accepting"
    """All batches go to the new plan's instances; old ones may still finish what they have in hand."""
    FINISHED = "finished"
    FAILED = "failed"
    """A worker could not be loaded: nothing has changed."""
    SUPERSEDED = "superseded"
    """Another plan was asked for before this one was accepting; what was loaded is used for that."""


@dataclass(slots=True, eq=False)
class Switch:
    """One change of plan, as it goes on. Times are seconds on the monotonic clock."""

    plan: Plan
    before: Plan
    reason: str
    asked_s: float
    asked_wall_s: float
    loads: int = 0
    """Workers that had to be started; 0 = warm."""
    accepting_s: float | None = None
    finished_s: float | None = None
    outcome: Outcome = Outcome.UNDER_WAY
    failure: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values; times are milliseconds from when it was asked for."""
        return {
            "time": round(self.asked_wall_s, 3),
            "plan": str(self.plan),
            "before": str(self.before),
            "reason": self.reason,
            "outcome": self.outcome.value,
            "failure": self.failure,
            "loads": self.loads,
            "accepting_ms": self._after_ms(self.accepting_s),
            "finished_ms": self._after_ms(self.finished_s),
        }

    def _after_ms(self, at_s: float | None) -> float | None:
        return None if at_s is None else round(1000 * (at_s - self.asked_s), 1)

    async def until_accepting(self) -> None:
        """Wait until new batches go to the new plan; raises `SwitchFailed` if they never will."""
        await self._until(Outcome.ACCEPTING, Outcome.FINISHED)

    async def until_finished(self) -> None:
        """Wait until the old plan's instances have given their cores back; raises `SwitchFailed`."""
        await self._until(Outcome.FINISHED)

    async def _until(self, *outcomes: Outcome) -> None:
        while self.outcome not in outcomes:
            if self.outcome in (Outcome.FAILED, Outcome.SUPERSEDED):
                raise SwitchFailed(f"the switch to plan {self.plan} {self.outcome}: {self.failure}")
            self._changed.clear()
            await self._changed.wait()

    def became(self, outcome: Outcome, now_s: float, failure: str = "") -> None:
        """Take a step."""
        self.outcome = outcome
        self.failure = failure
        if outcome is Outcome.ACCEPTING:
            self.accepting_s = now_s
        else:
            self.finished_s = now_s
        self._changed.set()


class Switcher:
    """Follows the handover's instructions for one member."""

    def __init__(
        self,
        member: "Member",
        plan: Plan,
        numbers: Sequence[int],
        *,
        leases: CoreLeases,
        next_number: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.handover = Handover(plan, numbers, next_number)
        self.switches: deque[Switch] = deque(maxlen=SWITCHES_KEPT)
        """The newest last."""
        self.retiring: set[int] = set()
        """Instances to tell of when they have nothing in hand any more."""
        self._member = member
        self._leases = leases
        self._loop = loop
        self._clock = clock
        self._pacers: dict[int, Pacer] = {}
        self._ending: dict[int, asyncio.TimerHandle] = {}
        self._agenda: deque[Instruction] = deque()
        self._is_following = False
        self._is_closed = False

    # --- asking -----------------------------------------------------------------------------------

    def switch(self, plan: Plan, reason: str) -> Switch:
        """Change to a placed plan; what becomes of it is told by the switch that is returned."""
        difference = self.handover.compare(plan)
        switch = Switch(
            plan,
            self.handover.plan,
            reason,
            self._clock.now_s(),
            self._clock.wall_s(),
            len(difference.missing),
        )
        refusal = "the model is being stopped" if self._is_closed else self._lacks_memory(difference.missing)
        if refusal:
            self.handover.refuse()
            self._failed(switch, refusal)
            self.switches.append(switch)
            return switch
        steps = self.handover.switch(plan)
        for pacer in self._pacers.values():
            pacer.hurry()
        self.switches.append(switch)
        self._follow(steps)
        return switch

    def keep_warm(self, plans: Sequence[Plan], max_bytes: int) -> None:
        """Keep the instances of these plans loaded and asleep, within this memory in all, bytes."""
        if not self._is_closed:
            self._follow(self.handover.keep_warm(plans, max_bytes))

    def is_loaded(self, plan: Plan) -> bool:
        """Whether a switch to this plan would have to start no worker, nor wait for one that loads."""
        difference = self.handover.compare(plan)
        loading = set(self.handover.numbers(Stage.LOADING))
        return not difference.missing and loading.isdisjoint(difference.assigned)

    def _lacks_memory(self, missing: Sequence[InstanceSpec]) -> str:
        needed = sum(self.handover.warm.bytes_of(spec) for spec in missing)
        there = available_bytes()
        if there is None or needed <= there:
            return ""
        return f"its {len(missing)} new workers need about {needed >> 20} MiB, and {there >> 20} MiB are free"

    def close(self) -> None:
        """Begin nothing more, and end what loads; the rest is as it is until the member drains."""
        if self._is_closed:
            return
        self._is_closed = True
        self._agenda.clear()
        for number in self.handover.numbers(Stage.LOADING):
            self._member.instances[number].drain()
            self._member.instances[number].kill("the model is being stopped")
        for pacer in self._pacers.values():
            pacer.stop()
        self._pacers.clear()
        for timer in self._ending.values():
            timer.cancel()
        self._ending.clear()
        for switch in self.switches:
            if switch.outcome is Outcome.UNDER_WAY:
                self._failed(switch, "the model is being stopped")
            elif switch.outcome is Outcome.ACCEPTING:  # what is left of the old plan ends with the rest
                switch.became(Outcome.FINISHED, self._clock.now_s())

    # --- events -----------------------------------------------------------------------------------

    def ready(self, instance: "Instance") -> bool:
        """A worker is loaded; returns whether it is to be seated now, as one that was in use before."""
        number = instance.number
        self._stop_pacing(number)
        if self._is_closed:
            return True
        is_active = self.handover.stage(number) is Stage.ACTIVE
        resident = instance.ready.resident_bytes if instance.ready is not None else 0
        self._follow(self.handover.loaded(number, resident))
        return is_active

    def lost(self, number: int, reason: str) -> None:
        """A worker's process is gone, and the dispatcher knows."""
        self._stop_pacing(number)
        self.retiring.discard(number)
        if self._is_closed:
            return
        if self.handover.stage(number) is Stage.ENDING:
            self._forget(number)
        self._follow(self.handover.lost(number, reason))

    def gave_up(self, number: int) -> None:
        """A worker will not come back."""
        self.handover.gave_up(number)

    def look_for_drained(self) -> None:
        """Some instance retires: see whether it has finished."""
        dispatcher = self._member.dispatcher
        for number in list(self.retiring):
            if not dispatcher.has_instance(number) or dispatcher.is_idle(number):
                self.retiring.discard(number)
                if not self._is_closed:
                    instance = self._member.instances[number]
                    self._follow(self.handover.drained(number, instance.resident_bytes))

    def _stop_pacing(self, number: int) -> None:
        pacer = self._pacers.pop(number, None)
        if pacer is not None:
            pacer.stop()

    def _forget(self, number: int) -> None:
        timer = self._ending.pop(number, None)
        if timer is not None:
            timer.cancel()
        del self._member.instances[number]

    # --- instructions -----------------------------------------------------------------------------

    def _follow(self, steps: Sequence[Instruction]) -> None:
        self._agenda.extend(steps)
        if self._is_following:  # a step has led to an event that led here
            return
        self._is_following = True
        try:
            while self._agenda:
                self._do(self._agenda.popleft())
        finally:
            self._is_following = False

    def _do(self, step: Instruction) -> None:
        match step:
            case Load(number=number, spec=spec):
                self._load(number, spec)
            case Seat(number=number, spec=spec):
                self._leases.register(number, spec.cores, self._member.schedule, spec.pool)
                instance = self._member.instances[number]
                instance.become(spec)
                if instance.is_ready:  # else it takes part when it is back
                    self._member.seat(instance)
            case Reseat(number=number, spec=spec):
                self.retiring.discard(number)
                self._member.instances[number].become(spec)
                self._member.reseat(number, spec)
            case Retire(number=number):
                self._member.retire(number)
                self.retiring.add(number)
                self._member.schedule()
            case Unseat(number=number):
                self._member.unseat(number)
            case End(number=number):
                self._end(number)
            case _:
                self._announce(step)

    def _load(self, number: int, spec: InstanceSpec) -> None:
        instance = self._member.make_instance(number, spec)
        instance.start()
        pacer = self._pacers[number] = Pacer(
            instance,
            self._leases,
            loop=self._loop,
            clock=self._clock,
            is_urgent=not self.handover.is_accepting,  # else it is loaded to sleep, and can wait for slack
        )
        pacer.start()

    def _end(self, number: int) -> None:
        instance = self._member.instances[number]
        was_loading = not instance.is_ready
        instance.drain()
        if instance.is_gone:
            self._forget(number)
            self._follow(self.handover.lost(number, "ended"))
        elif was_loading:
            instance.kill("it is not needed any more")
        else:
            self._ending[number] = self._loop.call_later(END_LIMIT_S, instance.kill, "it did not end")

    def _announce(self, step: Instruction) -> None:
        now_s, name = self._clock.now_s(), self._member.launch.name
        match step:
            case Accepting(plan=plan):
                if (switch := self._under_way(plan)) is not None:
                    switch.became(Outcome.ACCEPTING, now_s)
                    took_ms = 1000 * (now_s - switch.asked_s)
                    log.info("%s: plan %s after %.0f ms, instead of %s", name, plan, took_ms, switch.before)
                self._member.plan_changed(plan)
            case Finished():
                for switch in self.switches:
                    if switch.outcome is Outcome.ACCEPTING:
                        switch.became(Outcome.FINISHED, now_s)
            case RolledBack(plan=plan, reason=reason):
                if (switch := self._under_way(plan)) is not None:
                    self._failed(switch, reason)
            case Superseded(plan=plan):
                if (switch := self._under_way(plan)) is not None:
                    switch.became(Outcome.SUPERSEDED, now_s, "another plan was asked for")

    def _under_way(self, plan: Plan) -> Switch | None:
        """The switch to this very plan; with the next one asked for, the older of two is meant."""
        for switch in self.switches:
            if switch.outcome is Outcome.UNDER_WAY and switch.plan is plan:
                return switch
        return None

    def _failed(self, switch: Switch, reason: str) -> None:
        switch.became(Outcome.FAILED, self._clock.now_s(), reason)
        name = self._member.launch.name
        log.warning("%s: no switch to plan %s: %s; %s stays", name, switch.plan, reason, switch.before)
