"""Changes of an ensemble's plan: those of all its members, as one that is made whole or not at all."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partita.core.clock import Clock
from partita.core.errors import SwitchFailed
from partita.core.plan import Plan
from partita.engine.deployment import plan_of
from partita.engine.switching import SWITCHES_KEPT, Outcome, Switch, Switcher
from partita.machines.handover import Stage, SwitchCounts

if TYPE_CHECKING:
    from partita.engine.group import MemberGroup

log = logging.getLogger("partita")


class GroupHandover:
    """What can be asked of all members' handovers together."""

    def __init__(self, group: "MemberGroup", plan: Plan) -> None:
        self.plan = plan
        self.counts = SwitchCounts()
        self.is_accepting = self.is_finished = True
        self._group = group

    def numbers(self, *stages: Stage) -> list[int]:
        """The instances of all members in any of these stages."""
        switchers = [branch.member.switcher for branch in self._group.branches]
        return [n for one in switchers if one is not None for n in one.handover.numbers(*stages)]


class GroupSwitcher:
    """Has every member switch to its part of a plan. One at a time: the next one waits for the one before."""

    def __init__(
        self, group: "MemberGroup", plan: Plan, *, loop: asyncio.AbstractEventLoop, clock: Clock
    ) -> None:
        self.handover = GroupHandover(group, plan)
        self.switches: deque[Switch] = deque(maxlen=SWITCHES_KEPT)
        """The newest last."""
        self._group = group
        self._loop = loop
        self._clock = clock
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def _members(self) -> dict[str, Switcher]:
        """The own switchers of the members that have not failed for good, by name."""
        living = [branch for branch in self._group.branches if branch.failure is None]
        found = {branch.role.name: branch.member.switcher for branch in living}
        return {name: switcher for name, switcher in found.items() if switcher is not None}

    def switch(self, plan: Plan, reason: str) -> Switch:
        """Change to a placed plan with instances of every member; the switch tells what becomes of it."""
        before = self.handover.plan
        switch = Switch(plan, before, reason, self._clock.now_s(), self._clock.wall_s())
        self.switches.append(switch)
        self.handover.counts.asked += 1
        self.handover.is_accepting = self.handover.is_finished = False
        task = self._loop.create_task(self._carry_out(switch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return switch

    async def _carry_out(self, switch: Switch) -> None:
        async with self._turn:
            try:
                await self._switch_all(switch)
            except SwitchFailed as error:
                self.handover.counts.failed += 1
                switch.became(Outcome.FAILED, self._clock.now_s(), str(error))
                log.warning("%s: no switch to plan %s: %s", self._group.launch.name, switch.plan, error)
            is_last = switch is self.switches[-1]
            self.handover.is_accepting = self.handover.is_finished = is_last

    async def _switch_all(self, switch: Switch) -> None:
        members, before = self._members(), self.handover.plan
        if self._is_closed:
            raise SwitchFailed("the ensemble is being stopped")
        if any(not _part(switch.plan, name).instances for name in members):
            raise SwitchFailed("the plan has no instance of some member")
        switch.before = before
        parts = {name: one.switch(_part(switch.plan, name), switch.reason) for name, one in members.items()}
        switch.loads = sum(part.loads for part in parts.values())
        outcomes = await asyncio.gather(
            *(part.until_accepting() for part in parts.values()), return_exceptions=True
        )
        failed = next((one for one in outcomes if isinstance(one, BaseException)), None)
        if failed is not None:
            await self._take_back(before)
            raise SwitchFailed(str(failed))
        self.handover.plan = switch.plan
        self.handover.counts.accepted += 1
        switch.became(Outcome.ACCEPTING, self._clock.now_s())
        log.info("%s: plan %s instead of %s", self._group.launch.name, switch.plan, before)
        self._group.plan_changed(switch.plan)
        if switch is self.switches[-1]:
            self.handover.is_accepting = True
        await asyncio.gather(*(part.until_finished() for part in parts.values()), return_exceptions=True)
        switch.became(Outcome.FINISHED, self._clock.now_s())

    async def _take_back(self, plan: Plan) -> None:
        """Have those members that have switched go back: what serves is one plan."""
        back = [
            one.switch(_part(plan, name), "another member failed") for name, one in self._members().items()
        ]
        await asyncio.gather(*(part.until_accepting() for part in back), return_exceptions=True)

    def keep_warm(self, plans: Sequence[Plan], max_bytes: int) -> None:
        """Keep the instances of these plans loaded and asleep, within this memory in all, bytes."""
        members = self._members()
        for name, switcher in members.items():
            own = [part for part in (_part(plan, name) for plan in plans) if part.instances]
            switcher.keep_warm(own, max_bytes // len(members))

    def is_loaded(self, plan: Plan) -> bool:
        """Whether a switch to this plan would have to start no worker."""
        return all(one.is_loaded(_part(plan, name)) for name, one in self._members().items())

    def close(self) -> None:
        """Begin nothing more; the members' own switchers end what is under way."""
        self._is_closed = True


def _part(plan: Plan, member: str) -> Plan:
    return plan_of([spec for spec in plan.instances if spec.model == member])
