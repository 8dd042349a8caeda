"""The cores of a simulated machine, and what a profile's plans on some of them are."""

from collections.abc import Sequence

from partita.core.errors import InvalidInput
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile
from partita.core.topology import LogicalCpu, Topology
from partita.machines.dispatcher import Policy
from partita.planning.choices import ProfiledChoices
from partita.planning.core_shares import Cores
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place_beside, standing_on
from partita.simulator.settings import SimulationSettings


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


class PlansOn:
    """One model's plans on some of a machine's cores, as the head makes them."""

    def __init__(
        self, profile: Profile, settings: SimulationSettings, topology: Topology, cores: Cores
    ) -> None:
        self.cores = cores
        self.optimizer = Optimizer(profile, sockets=tuple(map(len, topology.by_socket(cores))))
        self._settings = settings
        self._topology = topology

    def first(self, batch: int | None, standing: Sequence[InstanceSpec] = ()) -> Plan:
        """Return the plan for this many items at once; None = for a load that is not known."""
        cores, most = len(self.cores), self._settings.max_batch
        if batch is None:
            plan = self.optimizer.robust(cores, most)
        else:
            plan = self.optimizer.plan(cores, max(1, min(batch, most)), early_answers=True)
        beside = standing_on(standing, self.cores)
        return place_beside(plan, beside, self._topology, cores=self.cores)

    def choices(self, standing: Plan) -> ProfiledChoices:
        """Return what there is to choose from while this plan, or another, serves."""
        beside = standing_on(standing.instances, self.cores)
        return ProfiledChoices(
            self.optimizer,
            cores=len(self.cores),
            max_batch=self._settings.max_batch,
            place=lambda plan: place_beside(plan, beside, self._topology, cores=self.cores),
            allowed=self.cores,
            together=self._settings.policy is Policy.AGGREGATE,
        )
