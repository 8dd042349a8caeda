"""One run of several models on one machine, and what came of it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import Objective
from partita.planning.division import Divided, Division, Party, even_shares, wanted_cores
from partita.planning.joint import Demand
from partita.planning.optimizer import Optimizer
from partita.simulator.machine import SharedMachine
from partita.simulator.machine_cores import PlansOn, described
from partita.simulator.model import SimulatedModel
from partita.simulator.result import SimulationResult, joined
from partita.simulator.settings import SimulatedLoad
from partita.simulator.sharing import SimulatedSharing
from partita.simulator.simulation import run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedResult:
    """What came of each model, and how the cores were divided among them."""

    models: Mapping[str, SimulationResult]
    divisions: tuple[Divided, ...]
    """The newest looks at it, and what came of each."""
    overloads: tuple[tuple[float, float], ...]
    """(from, to) of each stretch in which more came than can be carried, however the cores are divided."""

    def document(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return {
            "models": {name: result.document() for name, result in self.models.items()},
            "divisions": [divided.document() for divided in self.divisions],
            "overloads": [{"from_s": start, "to_s": end} for start, end in self.overloads],
        }


class SharedSimulation:
    """Serves several models on one machine. Made once, run once. Raises `InvalidInput`."""

    def __init__(self, loads: Sequence[SimulatedLoad]) -> None:
        _check(loads)
        settings = loads[0].settings
        self._adapts = settings.adapt
        self._loads = {load.name: load for load in loads}
        self._machine = SharedMachine()
        self._duration_s = max(load.arrivals.duration_s for load in loads)
        topology = described(settings.sockets or (settings.cores,))
        cores = tuple(range(settings.cores))
        sockets = tuple(map(len, topology.by_socket(cores)))
        self._planners = {load.name: Optimizer(load.profile, sockets=sockets) for load in loads}
        shares = even_shares(list(self._loads), cores, topology)
        if self._adapts:
            parties = [
                Party(name=load.name, cores=shares[load.name], demand=self._first_demand(load))
                for load in loads
            ]
            shares = wanted_cores(parties, cores, topology).cores
        self._models = [
            SimulatedModel(
                load,
                PlansOn(load.profile, load.settings, topology, shares[load.name]),
                self._machine,
                topology,
                goes_on=self._goes_on,
            )
            for load in loads
        ]
        self._sharing = SimulatedSharing(
            self._models,
            self._planners,
            Division(settings.switching, interval_s=settings.estimator.interval_s),
            cores,
            topology,
            self._machine.agenda,
            goes_on=self._goes_on,
        )

    def _first_demand(self, load: SimulatedLoad) -> Demand:
        planner = self._planners[load.name]
        return Demand(name=load.name, optimizer=planner, batch=1, weight=load.settings.weight)

    def _goes_on(self, now_s: float) -> bool:
        return now_s < self._duration_s or any(model.member.depth for model in self._models)

    def run(self) -> SharedResult:
        """Serve every request, and return what came of it."""
        for model in self._models:
            model.start()
        if self._adapts:
            self._sharing.start()
        loads = list(self._loads.values())
        arrivals = [load.arrivals for load in loads]
        end_s = run(self._machine.agenda, list(zip(self._models, arrivals, strict=True)))
        for model in self._models:
            model.member.check()
        able = [_Capacity(self._planners[load.name], load) for load in loads]
        return SharedResult(
            models={
                model.name: model.result(end_s, one.most)
                for model, one in zip(self._models, able, strict=True)
            },
            divisions=tuple(self._sharing.division.log),
            overloads=tuple(self._overloads(loads, able)),
        )

    def _overloads(
        self, loads: Sequence[SimulatedLoad], able: Sequence["_Capacity"]
    ) -> list[tuple[float, float]]:
        """Return when no division of the cores, or of the time of shared ones, carries what comes."""
        settings = loads[0].settings
        width_s = settings.estimator.interval_s
        windows = int(np.ceil(self._duration_s / width_s))
        needed = np.zeros(windows)
        for load, one in zip(loads, able, strict=True):
            rates = load.arrivals.items_per_s(width_s)
            shared = len(loads) > settings.cores
            needed[: len(rates)] += [one.share(rate) if shared else one.cores(rate) for rate in rates]
        return joined(np.flatnonzero(needed > settings.cores), width_s, self._duration_s)


class _Capacity:
    """How many items per second a model's best plans can do, by the number of their cores."""

    def __init__(self, optimizer: Optimizer, load: SimulatedLoad) -> None:
        settings, most, able = load.settings, 0.0, [0.0]
        for cores in range(1, settings.cores + 1):
            with suppress(NoFeasiblePlan):  # of so few cores, where the profile has no instance so small
                plan = optimizer.plan(cores, settings.max_batch, Objective.THROUGHPUT)
                most = max(most, optimizer.items_per_s(plan))
            able.append(most)
        self.most = most
        self._able = np.array(able)  # (cores + 1,) items/s, ascending

    def cores(self, rate: float) -> int:
        """Return the fewest cores with which it can do this; one more than there are where none suffice."""
        return max(1, int(np.searchsorted(self._able, rate)))

    def share(self, rate: float) -> float:
        """Return the same where cores are shared in turns: the part of all of their time."""
        cores = len(self._able) - 1
        if not self.most:
            return cores + 1.0 if rate else 0.0
        return cores * rate / self.most


def _check(loads: Sequence[SimulatedLoad]) -> None:
    names = [load.name for load in loads]
    if not loads:
        raise InvalidInput("simulation: no models; give at least one")
    if len(set(names)) < len(names):
        raise InvalidInput(f"simulation: names {', '.join(names)}: each model needs one of its own")
    if len({load.settings.machine for load in loads}) > 1:
        raise InvalidInput("simulation: all models have to be on the same machine, with the same interval")
