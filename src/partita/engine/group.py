"""Several members behind one service: every request goes to all of them, and one answer comes back.

To its service a group looks like one member. A request's items lie in X once; each member gets a job of its
own over them, and batches it as it likes. What the members answer meets in an accumulator.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from partita.core.clock import Clock
from partita.core.errors import InferenceFailed, InvalidInput, RequestError
from partita.core.plan import Plan
from partita.core.tensors import Signature
from partita.engine.branch import Branch
from partita.engine.deployment import MemberDeployment, plan_of
from partita.engine.ensemble_signature import Combined, combine_signatures
from partita.engine.group_job import GroupDispatcher, GroupJob, absent_job
from partita.engine.group_switching import GroupSwitcher
from partita.engine.instance import Instance, ModelLaunch
from partita.engine.member import InstanceFactory, Member, MemberOwner
from partita.engine.owner import ArrivalMeter
from partita.engine.request import Buffer, DegradedShapes, Request, Shapes
from partita.engine.statistics import Statistics
from partita.machines.accumulator import Accumulator
from partita.machines.dispatcher import BatchingRules
from partita.machines.leases import CoreLeases
from partita.machines.rules import Rule, rule_maker

if TYPE_CHECKING:
    from partita.engine.observing import RequestObserver


class SecondStage(Protocol):
    """Where the members' predictions go when a worker combines them: `engine/combiner.py`."""

    @property
    def members(self) -> list[Member]:
        """What it consists of, once it was started."""

    def start(self, combined: Combined) -> None:
        """Start the worker: all members are loaded."""

    def submit(self, job: GroupJob, predictions: list[Any]) -> None:
        """Combine; the group hears of it by `answered` or `failed`."""

    def cancel(self, job: GroupJob) -> None:
        """Nobody waits for it any more."""

    def fail_everything(self, error: RequestError) -> None:
        """The ensemble stops."""

    def close(self) -> None:
        """Give everything back, once the worker is gone."""

    def check(self) -> None:
        """Assert its laws."""


class MemberGroup:
    """The members of one ensemble, and the one member that its service sees."""

    def __init__(
        self,
        name: str,
        members: Sequence[MemberDeployment],
        rules: BatchingRules,
        *,
        rule: str,
        degrades: bool,
        leases: CoreLeases,
        statistics: Statistics,
        owner: MemberOwner,
        make_instance: InstanceFactory,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.launch = ModelLaunch(name=name, path="", runtime="ensemble")
        self.second_stage: SecondStage | None = None
        self.signature: Signature | None = None
        self.combined: Combined | None = None
        self._degrades = degrades
        self._owner: Any = owner
        """The service. It is a `MemberOwner` of members and jobs that look like what a group gives it."""
        self._rule_name = rule
        weights = {member.role.name: member.role.weight for member in members}
        self._make_rule: Callable[[], Rule] = rule_maker(rule, weights)
        self._now_s = clock.now_s
        self._statistics = statistics
        self.branches = [
            Branch(
                self, index, member.role, member.launch, rules, leases, statistics, make_instance, loop, clock
            )
            for index, member in enumerate(members)
        ]
        for branch in self.branches:
            branch.member.beside = [other.member for other in self.branches]
        self.switcher: GroupSwitcher | None = None
        """Sees to changes of plan, from the start on."""
        self.meter: ArrivalMeter | None = None
        """Whoever wants to know the depth that arriving items find."""
        self._loop, self._clock = loop, clock
        self.live: dict[GroupJob, None] = {}
        """Jobs that were admitted and have not ended."""
        self.dispatcher = GroupDispatcher(self)

    # --- instances --------------------------------------------------------------------------------

    def start(self, plan: Plan, numbers: Iterator[int]) -> None:
        """Start the plan's instances: each names the member that it is of."""
        self.switcher = GroupSwitcher(self, plan, loop=self._loop, clock=self._clock)
        for branch in self.branches:
            own = [spec for spec in plan.instances if spec.model == branch.role.name]
            branch.member.enlist(plan_of(own), numbers)
        for branch in self.branches:
            branch.member.launch_enlisted()

    @property
    def observer(self) -> "RequestObserver | None":
        """Who follows requests, if anybody."""
        return self.branches[0].member.observer

    @observer.setter
    def observer(self, observer: "RequestObserver | None") -> None:
        for branch in self.branches:
            branch.member.observer = observer

    def close_switcher(self) -> None:
        """Begin no change of plan any more."""
        if self.switcher is not None:
            self.switcher.close()
        for member in self._everyone:
            member.close_switcher()

    @property
    def members(self) -> list[Member]:
        """The members that have not failed for good, and the combining worker's."""
        return [*(b.member for b in self.branches if b.failure is None), *self._stage_members]

    @property
    def _everyone(self) -> list[Member]:
        return [*(branch.member for branch in self.branches), *self._stage_members]

    @property
    def _stage_members(self) -> list[Member]:
        return [] if self.second_stage is None else self.second_stage.members

    @property
    def instances(self) -> dict[int, Instance]:
        """All instances of all members, by number."""
        return {number: one for member in self._everyone for number, one in member.instances.items()}

    @property
    def ready_instances(self) -> int:
        """Instances that take work now; 0 where some member has none: no request can be answered then."""
        counts = [member.ready_instances for member in self.members]
        return sum(counts) if counts and all(counts) else 0

    def drain(self) -> None:
        """Let every instance finish and go."""
        for member in self._everyone:
            member.drain()

    def kill(self, reason: str, *, only_busy: bool = False) -> None:
        """End every worker at once; or only what executes, in a process of its own."""
        for member in self._everyone:
            member.kill(reason, only_busy=only_busy)

    def forget(self) -> None:
        """Give the cores back, once every worker is gone."""
        for member in self._everyone:
            member.forget()
        if self.second_stage is not None:
            self.second_stage.close()

    @property
    def is_gone(self) -> bool:
        """Whether no worker process is left."""
        return all(member.is_gone for member in self._everyone)

    # --- requests ---------------------------------------------------------------------------------

    def admit(self, request: Request) -> GroupJob:
        """Queue a request's items with every member; ask the dispatcher's `can_admit` first."""
        assert self.combined is not None
        accumulator = Accumulator(
            self._make_rule(),
            self.combined.members,
            request.n_items,
            same_shape=self._rule_name != "gathered",
        )
        jobs = []
        for branch in self.branches:
            if branch.failure is None:
                jobs.append(branch.member.admit(request))
            else:
                accumulator.drop(branch.index)
                jobs.append(absent_job(request))
        job = GroupJob(self, request, jobs, accumulator)
        self.live[job] = None
        if self.meter is not None:
            self.meter.arrived(request.n_items, self.dispatcher.depth)
        return job

    def forget_job(self, job: GroupJob) -> None:
        """The request was answered, failed or cancelled."""
        self.live.pop(job, None)
        if job.second is not None and self.second_stage is not None:
            self.second_stage.cancel(job)

    def advance(self, job: GroupJob) -> None:
        """Answer the request if all members' predictions are there and nothing of it runs any more."""
        if not job.accumulator.is_complete or job.running or job.second is not None or job.ended:
            return
        result = job.accumulator.finish()
        if self.second_stage is not None:
            self.second_stage.submit(job, result)
        else:
            self.answered(job, [flat(result)], (result.shape,))

    def answered(self, job: GroupJob, outputs: Sequence[Buffer], shapes: Shapes) -> None:
        """The combined predictions are there."""
        if job.accumulator.dropped:
            missing = (self.branches[index].role.name for index in sorted(job.accumulator.dropped))
            shapes = DegradedShapes(shapes, tuple(missing))
        self._owner.piece_done(job, 0, job.owner.n_items, outputs, shapes, self._now_s())

    def failed(self, job: GroupJob, error: RequestError) -> None:
        """The request cannot be answered."""
        self._owner.job_failed(job, error)

    def settled(self, job: GroupJob) -> None:
        """An ended request may have nothing running any more, or go on without a member that failed."""
        if not job.ended:
            self.advance(job)
        elif not job.running:
            self._owner.job_settled(job)

    def member_failed_on(self, branch: Branch, job: GroupJob, error: RequestError) -> None:
        """One member cannot answer: the request fails, or goes on without it."""
        named: RequestError = type(error)(f"member {branch.role.name}: {error}")
        if not self._degrades:
            self.failed(job, named)
            return
        if branch.member.dispatcher.end(job.jobs[branch.index]):
            branch.member.schedule()
        job.accumulator.drop(branch.index)
        if len(job.accumulator.dropped) == len(self.branches):
            self.failed(job, named)
        else:
            self.advance(job)

    # --- members ----------------------------------------------------------------------------------

    def branch_ready(self) -> None:
        """Some member has an instance: once all have, the ensemble knows what it takes and gives."""
        signatures = [branch.member.signature for branch in self.branches]
        if self.combined is None and all(signatures):
            known = [signature for signature in signatures if signature is not None]
            try:
                self.combined = combine_signatures([b.role for b in self.branches], known, self._rule_name)
            except InvalidInput as error:
                self._owner.member_failed(self, str(error))
                return
            if self.second_stage is not None:
                self.second_stage.start(self.combined)
            else:
                self.signature = self.combined.signature
        if self.signature is not None and self.ready_instances:
            self._owner.member_ready(self)

    def plan_changed(self, plan: Plan) -> None:
        """Another plan is in force for all members."""
        self._owner.plan_changed(plan)

    def count_deaths(self) -> None:
        """Some member's worker may have died."""
        self._statistics.worker_deaths = sum(branch.statistics.worker_deaths for branch in self.branches)

    def lost(self, name: str, reason: str) -> None:
        """A worker is gone."""
        self._owner.member_lost(f"member {name}: {reason}")

    def branch_failed(self, branch: Branch, reason: str) -> None:
        """No worker of a member will come back."""
        branch.failure = reason
        told = f"member {branch.role.name}: {reason}"
        rest = [other for other in self.branches if other.failure is None]
        if not self._degrades or not rest or self.combined is None:
            self._owner.member_failed(self, told)
            return
        for job in list(self.live):
            if not job.jobs[branch.index].ended:
                self.member_failed_on(branch, job, InferenceFailed(reason))

    def lost_stage(self, reason: str) -> None:
        """The combining worker is gone."""
        self._owner.member_lost(f"rule: {reason}")

    def stage_failed(self, reason: str) -> None:
        """The combining worker will not come back."""
        self._owner.member_failed(self, f"rule: {reason}")

    def expired(self, job: GroupJob) -> None:
        """It waited in some member's queue longer than the queue timeout."""
        self._owner.job_expired(job)


def flat(array: Any) -> Buffer:
    """Return an array's bytes, row-major."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""
