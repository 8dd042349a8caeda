"""One model of a simulation: its member serves, its controller looks on and changes the plan."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from partita.core.plan import Plan
from partita.core.topology import Topology
from partita.machines.handover import Accepting, Finished, RolledBack
from partita.planning.controller import Controller
from partita.planning.core_shares import Cores
from partita.planning.decisions import Action, Decision, Reason
from partita.planning.demand_meter import DemandMeter
from partita.planning.estimator import BatchSizeEstimator
from partita.planning.joint import Demand, Planner
from partita.simulator.counts import Counts
from partita.simulator.machine import SharedMachine
from partita.simulator.machine_cores import PlansOn
from partita.simulator.member import Announcement, SimulatedMember
from partita.simulator.result import SimulationResult
from partita.simulator.service_times import ServiceTimes
from partita.simulator.settings import SimulatedLoad

Moved = Callable[[float], None]


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
    cores: list[tuple[float, int]] = field(default_factory=list)
    """How many cores its plans had, with the time from which that was so."""


class SimulatedModel:
    """Serves what comes for one model with the plans of its profile on some cores of the machine.

    `goes_on` says whether anything is still to come or to be answered, by whichever model.
    """

    def __init__(
        self,
        load: SimulatedLoad,
        plans: PlansOn,
        machine: SharedMachine,
        topology: Topology,
        *,
        goes_on: Callable[[float], bool],
    ) -> None:
        settings = load.settings
        self.name = load.name
        self.cores: Cores = plans.cores
        """Those that its plans are made for."""
        self._load = load
        self._settings = settings
        self._topology = topology
        self._agenda = machine.agenda
        self._goes_on = goes_on
        self._timeline = Timeline()
        self._switches: list[Decision] = []
        self._moved: Moved | None = None
        """Who waits for the plan that was asked for to be alone on its cores."""
        self.first_plan = plans.first(settings.batch)
        choices = plans.choices(self.first_plan)
        self._counts = Counts(len(load.arrivals.times_s))
        self.member = SimulatedMember(
            self.first_plan,
            settings.rules,
            ServiceTimes(load.profile, cores=settings.cores, contention=settings.contention),
            machine,
            self._counts,
            load_s=settings.load_s,
            announce=self._announced,
        )
        self._controller = Controller(
            choices, self.first_plan, now_s=0.0, estimator=settings.estimator, switching=settings.switching
        )
        self._demand = DemandMeter(settings.estimator, settings.switching, now_s=0.0)
        self._watching = BatchSizeEstimator(settings.estimator, batch=self.first_plan.batch, now_s=0.0)
        """Used where the plan stays: B̃ is shown all the same."""

    def start(self) -> None:
        """Look at the load from now on."""
        self._timeline.plans.append((0.0, self.first_plan))
        self._timeline.cores.append((0.0, len(self.cores)))
        self._agenda.at(self._settings.estimator.sample_s, self._sample)

    # --- the load ---------------------------------------------------------------------------------

    def _sample(self, now_s: float, _: object) -> None:
        sample = self._counts.sample(now_s, self.member.depth, self.member.dispatcher.timeouts)
        estimator = self._controller.estimator if self._settings.adapt else self._watching
        if self._settings.adapt:
            self._controller.observe(sample)
            self._demand.observe(sample)
            self._decide(now_s)
        else:
            estimator.observe(sample.depth)
        timeline = self._timeline
        timeline.times_s.append(now_s)
        timeline.depths.append(sample.depth)
        timeline.batches.append(estimator.batch)
        if self._goes_on(now_s):
            # Multiplied, not added up: an hour has many samples.
            count = len(timeline.times_s) + 1
            self._agenda.at(count * self._settings.estimator.sample_s, self._sample)

    def _decide(self, now_s: float) -> None:
        decision = self._controller.decide(now_s)
        if decision is None:
            return
        if decision.target is not None:
            if decision.action is Action.SWITCH:
                self._switches.append(decision)
            self.member.switch(now_s, decision.target)
        elif decision.reason is Reason.ASKED:
            self._has_moved(now_s)

    def _announced(self, now_s: float, what: Announcement) -> None:
        switching = self._controller.switching
        if isinstance(what, Accepting):
            if switching is not None:
                self._controller.switched(now_s)
            if str(self._timeline.plans[-1][1]) != str(what.plan):
                self._timeline.plans.append((now_s, what.plan))
            if self._timeline.cores[-1][1] != len(self.cores):
                self._timeline.cores.append((now_s, len(self.cores)))
        elif isinstance(what, RolledBack):
            if switching is not None:
                self._controller.switch_failed(now_s, what.reason)
        elif isinstance(what, Finished) and set(what.plan.placed_on) <= set(self.cores):
            self._has_moved(now_s)

    # --- the division of the cores ----------------------------------------------------------------

    def demand(self, planner: Planner) -> Demand:
        """Return what is asked of it; `planner` plans it on any number of the machine's cores."""
        estimator = self._controller.estimator
        batch, rate = (1, 0.0) if estimator.depth is None else self._demand.demand(estimator)
        return Demand(
            name=self.name,
            optimizer=planner,
            batch=batch,
            max_batch=self._settings.max_batch,
            weight=self._settings.weight,
            rate=rate,
        )

    def move(self, cores: Cores, batch: int | None, text: str, moved: Moved) -> None:
        """Go to the best plan on these cores, and plan for them from now on; `moved` is told when it is so.

        `batch` is what the load asks for; None = not known.
        """
        plans = PlansOn(self._load.profile, self._settings, self._topology, cores)
        plan = plans.first(batch, self._controller.plan.instances)
        self.cores, self._moved = cores, moved
        self._controller.ask(plan, text, plans.choices(plan))

    def _has_moved(self, now_s: float) -> None:
        moved, self._moved = self._moved, None
        if moved is not None:
            moved(now_s)

    # --- what came of it --------------------------------------------------------------------------

    def result(self, end_s: float, capacity: float) -> SimulationResult:
        """Return it; `capacity` is what to hold the load against, items per second."""
        timeline, controller = self._timeline, self._controller
        return SimulationResult(
            arrivals=self._load.arrivals,
            latencies_s=np.array(self._counts.latencies_s),
            answered=self._counts.answered,
            refused=self._counts.refused,
            end_s=end_s,
            capacity=capacity,
            interval_s=self._settings.estimator.interval_s,
            times_s=np.array(timeline.times_s),
            depths=np.array(timeline.depths),
            batches=np.array(timeline.batches),
            plans=tuple(timeline.plans),
            cores=tuple(timeline.cores),
            log=tuple(controller.log),
            rebatches=controller.rebatches,
            decided=tuple(self._switches),
        )
