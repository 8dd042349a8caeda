"""One member of a group: its `Member`, and the owner that this reports to."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.core.clock import Clock
from partita.core.errors import InferenceFailed, RequestError
from partita.core.plan import Plan
from partita.engine.ensemble_signature import MemberRole
from partita.engine.group_job import GroupJob
from partita.engine.instance import ModelLaunch
from partita.engine.member import InstanceFactory, Member
from partita.engine.request import Buffer, Shapes
from partita.engine.statistics import Statistics
from partita.machines.dispatcher import BatchingRules
from partita.machines.leases import CoreLeases
from partita.machines.work import Job

if TYPE_CHECKING:
    from partita.engine.group import MemberGroup


class MemberStatistics(Statistics):
    """What one member counts, which counts for its ensemble as well."""

    __slots__ = ("_whole", "heard")

    def __init__(self, whole: Statistics) -> None:
        self._whole = whole
        self.heard: Callable[[int, int], None] | None = None
        """Hears of every batch, for whoever measures: its items, and the worker's time for it, ns."""
        super().__init__()

    def count_batch(self, items: int, infer_ns: int, total_ns: int, queued_ns: int) -> None:
        """One batch was executed."""
        super().count_batch(items, infer_ns, total_ns, queued_ns)
        if self.heard is not None:
            self.heard(items, total_ns)
        self._whole.count_batch(items, infer_ns, total_ns, queued_ns)

    def mean_batch_ms(self, items: int) -> float | None:
        """Return how long the worker took for batches of this many items; None where there was none."""
        count = self.by_batch.get(items)
        if count is None or not count.executions:
            return None
        return (count.infer_ns + count.overhead_ns) / count.executions / 1e6


class Branch:
    """One member of a group, and the owner that this member reports to."""

    def __init__(
        self,
        group: "MemberGroup",
        index: int,
        role: MemberRole,
        launch: ModelLaunch,
        rules: BatchingRules,
        leases: CoreLeases,
        statistics: Statistics,
        make_instance: InstanceFactory,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.index = index
        self.role = role
        self.failure: str | None = None
        """Why it has failed for good; None while it has not."""
        self._group = group
        self.statistics = MemberStatistics(statistics)
        self.member = Member(
            launch,
            rules,
            leases=leases,
            statistics=self.statistics,
            owner=self,
            make_instance=make_instance,
            loop=loop,
            clock=clock,
        )

    def piece_done(
        self,
        job: Job,
        first: int,
        count: int,  # noqa: ARG002
        outputs: Sequence[Buffer],
        rows: Shapes,
        now_s: float,  # noqa: ARG002
    ) -> None:
        """Take some items' predictions."""
        combined = self._group.combined
        assert combined is not None
        chosen = combined.outputs[self.index]
        dtype = combined.specs[self.index].datatype.numpy
        whole: GroupJob = job.owner.jobs[0]
        try:
            predictions = np.frombuffer(outputs[chosen], dtype).reshape(rows[chosen])
            whole.accumulator.add(self.index, first, predictions)
            self._group.advance(whole)
        except RequestError as error:
            self._group.failed(whole, error)
        except MemoryError:  # nobody else would end the request
            text = f"the server has no memory left to combine {whole.owner.n_items} items"
            self._group.failed(whole, InferenceFailed(text))

    def job_failed(self, job: Job, error: RequestError) -> None:
        """Fail the request, or go on without this member."""
        if job.owner.jobs and not job.owner.jobs[0].ended:
            self._group.member_failed_on(self, job.owner.jobs[0], error)

    def job_settled(self, job: Job) -> None:
        """Nothing of it runs here."""
        if job.owner.jobs:
            self._group.settled(job.owner.jobs[0])

    def job_expired(self, job: Job) -> None:
        """It waited too long here."""
        self._group.expired(job.owner.jobs[0])

    def member_ready(self, member: Member) -> None:  # noqa: ARG002
        """The member can answer."""
        self._group.branch_ready()

    def member_lost(self, reason: str) -> None:
        """A worker is gone."""
        self._group.count_deaths()
        self._group.lost(self.role.name, reason)

    def member_failed(self, member: Member, reason: str) -> None:  # noqa: ARG002
        """No worker will come back."""
        self._group.branch_failed(self, reason)

    def plan_changed(self, plan: Plan) -> None:
        """Another plan is in force for this member alone; the ensemble's own is kept by who asked for it."""
