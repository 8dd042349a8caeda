"""What has gathered because the plan could not carry the load (Partita's addition to Packrat §3.8).

A depth says which batch size a load needs only as long as the load is carried. Where more comes than the
plan can do, items gather, and the depth says how long that has gone on: B̃ would run up, stay there until all
is worked off, and ask for batches that nobody needs. So what has gathered is followed by a queue on paper,
which grows and shrinks by what comes and by what the plan can do; while there is any, and for a while after
it, the depth counts only up to what the same rate brings about in a plan that carries it, by Little's law:
items in the system = rate × time. Items that come together are no backlog: nothing has gathered where a
request found nobody before it.
"""

from math import inf

from partita.core.errors import NoFeasiblePlan
from partita.core.plan import Plan
from partita.planning.carrying import enough
from partita.planning.choices import Choices
from partita.planning.load import Sample
from partita.planning.switching import SwitchRules


class Backlog:
    """Follows one model's backlog, sample by sample.

    It is cut for `after_s` longer, seconds, unless the depth has come down before: batches that were made
    large to work it off make a depth of their own until they are small again.
    """

    def __init__(self, rules: SwitchRules, *, now_s: float, after_s: float) -> None:
        self.items = 0.0
        """What has gathered, never more than the depth that was seen."""
        self._on_paper = 0.0
        self._rules = rules
        self._after_s = after_s
        self._latest_s = now_s
        self._until_s: float | None = None
        """When it is cut no longer, if no more gathers; None while there is nothing to cut."""
        self._arrived = 0
        self._seconds = 0.0
        """What came since it began to gather, and in which time."""

    def cut(self, sample: Sample, choices: Choices, plan: Plan) -> float:
        """Take a sample; return how much of its depth the load would bring about if it were carried."""
        seconds, self._latest_s = sample.now_s - self._latest_s, sample.now_s
        capacity = self._rules.max_load * choices.items_per_s(plan)
        if seconds <= 0.0 or capacity <= 0.0:
            return sample.depth  # a plan that the profile does not know
        grown = sample.arrived - capacity * seconds
        self._on_paper = min(max(0.0, self._on_paper + grown), sample.depth)
        self.items = self._on_paper if sample.standing else 0.0
        if self.items:
            self._until_s = sample.now_s + self._after_s
        elif self._until_s is None or sample.now_s >= self._until_s:
            self._forget()
            return sample.depth
        self._arrived += sample.arrived
        self._seconds += seconds
        carried = max(self._carried(choices, self._arrived / self._seconds), sample.request_items)
        if sample.depth <= carried and grown <= 0.0:
            self.items = self._on_paper = 0.0
            self._forget()
        return min(sample.depth, carried)

    def _forget(self) -> None:
        self._until_s = None
        self._arrived, self._seconds = 0, 0.0

    def _carried(self, choices: Choices, rate: float) -> float:
        """Return the depth of so many items/s in the plan of least batches that carries them."""
        try:
            batch = enough(choices, rate / self._rules.planned_load)
            latency_s = choices.latency_ms(choices.best(batch), batch) / 1000.0
        except NoFeasiblePlan:
            return inf
        return max(float(batch), rate * latency_s)
