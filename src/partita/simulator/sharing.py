"""Several models on one simulated machine: its cores are divided among them as the head does it."""

from collections.abc import Callable, Mapping, Sequence

from partita.core.topology import Topology
from partita.planning.core_shares import Cores
from partita.planning.division import Cause, Division, Outcome, Party, Share
from partita.planning.joint import Planner
from partita.simulator.agenda import Agenda
from partita.simulator.model import SimulatedModel

FIRST_LOOK_S = 0.5
"""When the cores are divided first: the head looks so often for models that came."""


class SimulatedSharing:
    """Looks what is asked of each model, and moves models to their cores, one after another."""

    def __init__(
        self,
        models: Sequence[SimulatedModel],
        planners: Mapping[str, Planner],
        division: Division,
        cores: Cores,
        topology: Topology,
        agenda: Agenda,
        *,
        goes_on: Callable[[float], bool],
    ) -> None:
        self.division = division
        self._models = {model.name: model for model in models}
        self._planners = planners
        self._cores = cores
        self._topology = topology
        self._agenda = agenda
        self._goes_on = goes_on
        self._looks = 0
        self._to_move: list[tuple[Share, str]] = []
        self._is_moving = False

    def start(self) -> None:
        """Look from now on."""
        self._agenda.at(FIRST_LOOK_S, self._look)

    def _look(self, now_s: float, _: object) -> None:
        self._looks += 1
        if self._goes_on(now_s):
            self._agenda.at(FIRST_LOOK_S + self._looks * self.division.interval_s, self._look)
        if self._is_moving:
            return
        cause = Cause.STARTED if self._looks == 1 else Cause.LOAD
        divided = self.division.decide(self._parties(), self._cores, self._topology, now_s=now_s, cause=cause)
        if divided.outcome is Outcome.DIVIDED:
            text = f"{divided.cause}: {divided.text}"
            moves = [share for share in divided.shares if share.before != share.cores]
            moves.sort(key=lambda share: not set(share.cores) <= set(share.before))
            self._to_move = [(share, text) for share in moves]
            self._move_next(now_s)

    def _parties(self) -> list[Party]:
        return [
            Party(name=name, cores=model.cores, demand=model.demand(self._planners[name]))
            for name, model in self._models.items()
        ]

    def _move_next(self, now_s: float) -> None:  # noqa: ARG002
        self._is_moving = bool(self._to_move)
        if not self._is_moving:
            self.division.succeeded()
            return
        share, text = self._to_move.pop(0)
        batch = share.batch if share.rate else None
        self._models[share.name].move(share.cores, batch, text, self._move_next)
