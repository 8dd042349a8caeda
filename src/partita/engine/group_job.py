"""What a service sees of a group's requests: one job, one queue and one dispatcher for all members."""

from typing import TYPE_CHECKING

from partita.engine.request import Request
from partita.machines.accumulator import Accumulator
from partita.machines.work import Job

if TYPE_CHECKING:
    from partita.engine.group import MemberGroup


class GroupJob:
    """One request's jobs, one for each member, and what has come of them. To the service it is one job."""

    __slots__ = ("_ended", "_group", "accumulator", "jobs", "owner", "second")

    def __init__(
        self, group: "MemberGroup", owner: Request, jobs: list[Job], accumulator: Accumulator
    ) -> None:
        self._group = group
        self._ended = False
        self.owner = owner
        self.jobs = jobs
        self.accumulator = accumulator
        self.second: Request | None = None
        """The request to the combining worker, where the rule runs in one."""

    @property
    def running(self) -> int:
        """Items being executed, over all members."""
        return sum(job.running for job in self.jobs)

    @property
    def ended(self) -> bool:
        """Whether the request was answered, failed or cancelled."""
        return self._ended

    @ended.setter
    def ended(self, value: bool) -> None:
        if value and not self._ended:
            self._ended = True
            self._group.forget_job(self)


class GroupDispatcher:
    """What a service asks of its member's dispatcher, answered for all members."""

    def __init__(self, group: "MemberGroup") -> None:
        self._group = group
        self.queue = GroupQueue(group)

    def end(self, job: GroupJob) -> bool:
        """Nothing of the request is dispatched from now on, by any member; they are asked for more here."""
        if not job.ended:
            job.ended = True
            for branch, own in zip(self._group.branches, job.jobs, strict=True):
                if branch.member.dispatcher.end(own):
                    branch.member.schedule()
        return False

    def unfinished_jobs(self) -> list[GroupJob]:
        """Every job that was admitted and has not ended."""
        return list(self._group.live)

    @property
    def running_items(self) -> int:
        """Items being executed, over all members."""
        return sum(branch.member.dispatcher.running_items for branch in self._group.branches)

    @property
    def depth(self) -> int:
        """Items queued and in flight, of the member that is furthest behind."""
        return max(branch.member.dispatcher.depth for branch in self._group.branches)

    @property
    def timeouts(self) -> int:
        """Batches that were formed because the batch timeout had passed, over all members."""
        return sum(branch.member.dispatcher.timeouts for branch in self._group.branches)

    def check(self) -> None:
        """Assert every member's laws, and that nothing waits for a request that has ended."""
        live = {id(job.owner) for job in self._group.live}
        for branch in self._group.branches:
            branch.member.dispatcher.check()
            for job in branch.member.dispatcher.unfinished_jobs():
                assert id(job.owner) in live, branch.role.name


class GroupQueue:
    """The members' queues as one."""

    def __init__(self, group: "MemberGroup") -> None:
        self._group = group

    @property
    def items(self) -> int:
        """Items that wait for the member that is furthest behind."""
        return max(branch.member.dispatcher.queue.items for branch in self._group.branches)

    def can_admit(self, n_items: int) -> bool:
        """Whether every member's queue has room."""
        return all(
            branch.member.dispatcher.queue.can_admit(n_items)
            for branch in self._group.branches
            if branch.failure is None
        )


def absent_job(request: Request) -> Job:
    """Return the job of a member that has failed: it ended before it began."""
    job = Job(request, request.n_items, request.layout.lane, request.arrived_s)
    job.ended = True
    return job
