"""One run: requests come, members serve them, controllers look on and change the plans."""

from collections.abc import Sequence

import numpy as np

from partita.core.plan import Objective
from partita.core.profile import Profile
from partita.simulator.agenda import Agenda
from partita.simulator.arrivals import Arrivals
from partita.simulator.machine import SharedMachine
from partita.simulator.machine_cores import PlansOn, described
from partita.simulator.model import SimulatedModel
from partita.simulator.result import SimulationResult
from partita.simulator.settings import SimulatedLoad, SimulationSettings


class Simulation:
    """Serves arrivals with the plans of a profile, one model alone. Made once, run once."""

    def __init__(self, profile: Profile, arrivals: Arrivals, settings: SimulationSettings) -> None:
        self._arrivals = arrivals
        machine = SharedMachine()
        topology = described(settings.sockets or (settings.cores,))
        plans = PlansOn(profile, settings, topology, tuple(range(settings.cores)))
        load = SimulatedLoad(name="", profile=profile, arrivals=arrivals, settings=settings)
        self._agenda = machine.agenda
        self._model = SimulatedModel(load, plans, machine, topology, goes_on=self._goes_on)
        self.first_plan = self._model.first_plan
        best = plans.optimizer.plan(settings.cores, settings.max_batch, Objective.THROUGHPUT)
        serves = best if settings.adapt else self.first_plan
        self._capacity = plans.choices(self.first_plan).items_per_s(serves)

    def _goes_on(self, now_s: float) -> bool:
        return now_s < self._arrivals.duration_s or self._model.member.depth > 0

    def run(self) -> SimulationResult:
        """Serve every request, and return what came of it."""
        self._model.start()
        end_s = run(self._agenda, [(self._model, self._arrivals)])
        self._model.member.check()
        return self._model.result(end_s, self._capacity)


def run(agenda: Agenda, loads: Sequence[tuple[SimulatedModel, Arrivals]]) -> float:
    """Serve every request of these models; returns when none comes any more and all are answered, seconds."""
    admits = [model.member.admit for model, _ in loads]
    next_s = agenda.next_s
    for time_s, at, request, items in _merged([arrivals for _, arrivals in loads]):
        while next_s <= time_s:
            agenda.happen()
            next_s = agenda.next_s
        admits[at](time_s, request, items)
        next_s = agenda.next_s
    now_s = duration_s = max(arrivals.duration_s for _, arrivals in loads)
    while any(model.member.depth for model, _ in loads) or agenda.next_s <= duration_s:
        now_s = agenda.happen()
    return max(now_s, duration_s)


def _merged(loads: Sequence[Arrivals]) -> "zip[tuple[float, int, int, int]]":
    """Return (time, whose, which of its requests, items) of all requests in order of time."""
    times_s = np.concatenate([one.times_s for one in loads])
    order = np.argsort(times_s, kind="stable")
    counts = [len(one.times_s) for one in loads]
    whose = np.repeat(np.arange(len(loads)), counts)
    which = np.concatenate([np.arange(count) for count in counts])
    items = np.concatenate([one.items for one in loads])
    columns = (column[order].tolist() for column in (times_s, whose, which, items))
    return zip(*columns, strict=True)


__all__ = ["Simulation", "described", "run"]
