"""The service of an ensemble: as that of one model, with a group of members in its member's place."""

from collections.abc import Callable
from typing import Any, cast

from partita.core.errors import RequestError
from partita.engine.combiner import Combiner
from partita.engine.deployment import EnsembleDeployment
from partita.engine.group import MemberGroup
from partita.engine.member import InstanceFactory, Member
from partita.engine.service import Service
from partita.system.shared_memory import SharedMemory


class Ensemble(Service):
    """Serves all members under one name; X is written once and read in place by all of them."""

    def __init__(
        self,
        deployment: EnsembleDeployment,
        *,
        next_number: Callable[[], int],
        instances_over: Callable[[Callable[[], SharedMemory]], InstanceFactory],
        **parts: Any,
    ) -> None:
        """`parts` are the keywords of `Service`."""
        self.deployment = deployment
        super().__init__(deployment.name, deployment.version, deployment.launch, deployment.settings, **parts)
        if deployment.combiner is not None:
            self.group.second_stage = Combiner(
                self.group,
                deployment.combiner,
                deployment.settings,
                core=min((core for one in deployment.plan.instances for core in one.cores), default=None),
                next_number=next_number,
                instances_over=instances_over,
                parts=parts,
            )

    @property
    def group(self) -> MemberGroup:
        """The members."""
        return cast(MemberGroup, self.member)

    def _make_member(self, **parts: Any) -> Member:
        group = MemberGroup(
            self.name,
            self.deployment.members,
            self.deployment.settings.rules,
            rule=self.deployment.rule,
            degrades=self.deployment.degrades,
            **parts,
        )
        return cast(Member, group)  # the service asks of its member no more than a group can answer

    def _fail_everything(self, error: RequestError) -> None:
        super()._fail_everything(error)
        if self.group.second_stage is not None:
            self.group.second_stage.fail_everything(error)

    def check(self) -> None:
        """Assert the conservation laws, the combining worker's as well."""
        super().check()
        if self.group.second_stage is not None:
            self.group.second_stage.check()
