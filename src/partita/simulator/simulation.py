"""One run: requests come, the member serves them, the controller looks on and changes the plan."""

from array import array
from dataclasses import dataclass, field

import numpy as np

from partita.core.errors import InvalidInput
from partita.core.plan import Objective, Plan
from partita.core.profile import Profile
from partita.core.topology import LogicalCpu, Topology
from partita.machines.dispatcher import Policy
from partita.machines.handover import Accepting, RolledBack
from partita.planning.choices import ProfiledChoices
from partita.planning.controller import Controller
from partita.planning.decisions import Action, Decision
from partita.planning.estimator import BatchSizeEstimator
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place
from partita.simulator.agenda import Agenda
from partita.simulator.arrivals import Arrivals
from partita.simulator.counts import Counts
from partita.simulator.member import SimulatedMember
from partita.simulator.result import SimulationResult
from partita.simulator.service_times import ServiceTimes
from partita.simulator.settings import SimulationSettings


@dataclass(slots=True)
class Timeline:
    """What was seen at each sample."""

    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    depths: "array[float]" = field(default_factory=lambda: array("d"))
    """Items queued and in flight, as arriving items found it."""
    batches: "array[int]" = field(default_factory=lambda: array("q"))
    """B̃."""
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    """Each plan, with the time from which it was in force."""


class Simulation:
    """Serves arrivals with the plans of a profile. Made once, run once."""

    def __init__(self, profile: Profile, arrivals: Arrivals, settings: SimulationSettings) -> None:
        self._settings = settings
        self._arrivals = arrivals
        self._timeline = Timeline()
        self._switches: list[Decision] = []
        self._agenda = Agenda()
        self._counts = Counts(len(arrivals.times_s))
        optimizer = Optimizer(profile, sockets=settings.sockets)
        topology = described(settings.sockets or (settings.cores,))
        self._choices = ProfiledChoices(
            optimizer,
            cores=settings.cores,
            max_batch=settings.max_batch,
            place=lambda plan: place(plan, topology),
            together=settings.policy is Policy.AGGREGATE,
        )
        self.first_plan = self._first_plan(optimizer, topology)
        most = optimizer.plan(settings.cores, settings.max_batch, Objective.THROUGHPUT)
        self._capacity = self._choices.items_per_s(most if settings.adapt else self.first_plan)
        self._member = SimulatedMember(
            self.first_plan,
            settings.rules,
            ServiceTimes(profile, cores=settings.cores, contention=settings.contention),
            self._agenda,
            self._counts,
            load_s=settings.load_s,
            announce=self._announced,
        )
        self._controller = Controller(
            self._choices,
            self.first_plan,
            now_s=0.0,
            estimator=settings.estimator,
            switching=settings.switching,
        )
        self._watching = BatchSizeEstimator(settings.estimator, batch=self.first_plan.batch, now_s=0.0)
        """Used where the plan stays: B̃ is shown all the same."""

    def _first_plan(self, optimizer: Optimizer, topology: Topology) -> Plan:
        settings = self._settings
        if settings.batch is not None:
            return self._choices.best(settings.batch)
        return place(optimizer.robust(settings.cores, settings.max_batch), topology)

    def run(self) -> SimulationResult:
        """Serve every request, and return what came of it."""
        self._timeline.plans.append((0.0, self.first_plan))
        self._agenda.at(self._settings.estimator.sample_s, self._sample)
        times_s, items = self._arrivals.times_s.tolist(), self._arrivals.items.tolist()
        agenda, admit = self._agenda, self._member.admit
        next_s = agenda.next_s
        for request, (time_s, count) in enumerate(zip(times_s, items, strict=True)):
            while next_s <= time_s:
                agenda.happen()
                next_s = agenda.next_s
            admit(time_s, request, count)
            next_s = agenda.next_s
        end_s = self._finish()
        self._member.check()
        return self._result(end_s)

    def _finish(self) -> float:
        now_s = self._arrivals.duration_s
        while self._member.depth or self._agenda.next_s <= self._arrivals.duration_s:
            now_s = self._agenda.happen()
        return max(now_s, self._arrivals.duration_s)

    # --- adaptation -------------------------------------------------------------------------------

    def _sample(self, now_s: float, _: object) -> None:
        sample = self._counts.sample(now_s, self._member.depth, self._member.dispatcher.timeouts)
        estimator = self._controller.estimator if self._settings.adapt else self._watching
        if self._settings.adapt:
            self._controller.observe(sample)
            self._decide(now_s)
        else:
            estimator.observe(sample.depth)
        timeline = self._timeline
        timeline.times_s.append(now_s)
        timeline.depths.append(sample.depth)
        timeline.batches.append(estimator.batch)
        if now_s < self._arrivals.duration_s or self._member.depth:
            # Multiplied, not added up: an hour has many samples.
            count = len(timeline.times_s) + 1
            self._agenda.at(count * self._settings.estimator.sample_s, self._sample)

    def _decide(self, now_s: float) -> None:
        decision = self._controller.decide(now_s)
        if decision is not None and decision.target is not None:
            if decision.action is Action.SWITCH:
                self._switches.append(decision)
            self._member.switch(now_s, decision.target)

    def _announced(self, now_s: float, what: Accepting | RolledBack) -> None:
        switching = self._controller.switching
        if isinstance(what, Accepting):
            if switching is not None:
                self._controller.switched(now_s)
            if str(self._timeline.plans[-1][1]) != str(what.plan):
                self._timeline.plans.append((now_s, what.plan))
        elif switching is not None:
            self._controller.switch_failed(now_s, what.reason)

    def _result(self, end_s: float) -> SimulationResult:
        timeline, controller = self._timeline, self._controller
        return SimulationResult(
            arrivals=self._arrivals,
            latencies_s=np.array(self._counts.latencies_s),
            answered=self._counts.answered,
            refused=self._counts.refused,
            end_s=end_s,
            capacity=self._capacity,
            interval_s=self._settings.estimator.interval_s,
            times_s=np.array(timeline.times_s),
            depths=np.array(timeline.depths),
            batches=np.array(timeline.batches),
            plans=tuple(timeline.plans),
            log=tuple(controller.log),
            rebatches=controller.rebatches,
            decided=tuple(self._switches),
        )


def described(sockets: tuple[int, ...]) -> Topology:
    """Return a machine with so many cores on each socket, numbered through."""
    if not sockets or min(sockets) < 1:
        raise InvalidInput(f"sockets {sockets}: give at least one socket, each with 1 or more cores")
    cpus, number = [], 0
    for socket, cores in enumerate(sockets):
        for core in range(cores):
            cpus.append(LogicalCpu(socket=socket, node=socket, core=core, cpu=number))
            number += 1
    return Topology(cpus=tuple(cpus))
