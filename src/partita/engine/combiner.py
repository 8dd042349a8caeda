"""The second stage of an ensemble: a worker that combines the members' predictions.

The head runs no user code, and stacking is a network: both get the predictions as the items of a service of
their own, with its own X, queue, limits and restarts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita.core.errors import InvalidInput, RequestError
from partita.core.plan import InstanceSpec
from partita.core.tensors import DYNAMIC, TensorSpec
from partita.engine.deployment import plan_of
from partita.engine.ensemble_signature import Combined, with_outputs
from partita.engine.group import MemberGroup, flat
from partita.engine.group_job import GroupJob
from partita.engine.instance import ModelLaunch
from partita.engine.member import InstanceFactory, Member
from partita.engine.request import Buffer, Layout, Request, Shapes
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import Policy
from partita.system.shared_memory import SharedMemory

RULES = ("rule", "boxes")
"""Runtimes that combine predictions: a user's own class, and boxes fusion. Any other executes a network."""


class Combiner:
    """The worker, from the moment on at which all members are loaded."""

    def __init__(
        self,
        group: MemberGroup,
        launch: ModelLaunch,
        settings: ServiceSettings,
        *,
        core: int | None,
        next_number: Callable[[], int],
        instances_over: Callable[[Callable[[], SharedMemory]], InstanceFactory],
        parts: dict[str, Any],
    ) -> None:
        self._group = group
        self._launch = launch
        self._settings = settings
        self._core = core
        """The one that it takes turns on with the members."""
        self._next_number = next_number
        self._parts = {**parts, "make_instance": instances_over(self._memory)}
        self._service: _CombinerService | None = None
        self._inputs: tuple[TensorSpec, ...] = ()
        """Of each member, its predictions as an input."""

    @property
    def members(self) -> list[Member]:
        """The service's one member, once there is one."""
        return [] if self._service is None else [self._service.member]

    def _memory(self) -> SharedMemory:
        assert self._service is not None
        return self._service.arena.memory

    @property
    def _is_rule(self) -> bool:
        return self._launch.runtime in RULES

    def start(self, combined: Combined) -> None:
        """Start the worker: what it gets is known now."""
        self._inputs = tuple(
            replace(spec, name=member.name)
            for spec, member in zip(combined.specs, combined.members, strict=True)
        )
        launch = replace(self._launch, inputs=self._inputs) if self._is_rule else self._launch
        self._service = _CombinerService(self, launch, self._settings, self._parts)
        # A rule hears of all items of a request at once, so that its batch is never smaller.
        batch = self._settings.rules.max_queue_items if self._is_rule else 32
        cores = () if self._core is None else (self._core,)
        spec = InstanceSpec(threads=1, batch=batch, cores=cores)
        self._service.start(plan_of([spec]), iter(self._next_number, None))

    def ready(self) -> None:
        """The worker is loaded (again)."""
        assert self._service is not None
        combined = self._group.combined
        assert combined is not None
        if self._group.signature is None:
            taken = self._service.signature
            try:
                if not self._is_rule:
                    self._check_stack(taken.inputs)
            except InvalidInput as error:
                self._group.stage_failed(str(error))
                return
            self._group.signature = with_outputs(combined.signature, taken.outputs)
        self._group.branch_ready()

    def _check_stack(self, inputs: Sequence[TensorSpec]) -> None:
        width = sum(int(np.prod(spec.shape)) for spec in self._inputs)
        fits = len(inputs) == 1 and inputs[0].shape in ((width,), (DYNAMIC,))
        if not fits or any(DYNAMIC in spec.shape for spec in self._inputs):
            told = ", ".join(f"{spec.name} {[DYNAMIC, *spec.shape]}" for spec in inputs)
            raise InvalidInput(
                f"the stacking model takes {told}; it must have one input of shape {[DYNAMIC, width]}, the "
                f"members' predictions side by side: {', '.join(spec.name for spec in self._inputs)}"
            )

    def lost(self, reason: str) -> None:
        """A worker is gone."""
        self._group.lost_stage(reason)

    def gave_up(self, reason: str) -> None:
        """It will not come back."""
        self._group.stage_failed(reason)

    # --- requests ---------------------------------------------------------------------------------

    def submit(self, job: GroupJob, predictions: list[Any]) -> None:
        """Combine; the group hears of it by `answered` or `failed`."""
        assert self._service is not None
        n_items = job.owner.n_items
        if not self._is_rule:
            spec = self._service.signature.inputs[0]
            side_by_side = np.concatenate([p.reshape(n_items, -1) for p in predictions], axis=1)
            predictions = [side_by_side.astype(spec.datatype.numpy, copy=False)]
        row_bytes = tuple(array.nbytes // n_items for array in predictions)
        # Requests to a rule share no batch: what it says of n items may depend on all of them.
        lane = object() if self._is_rule else None
        is_open = not self._service.signature.is_static
        shapes = tuple(array.shape[1:] for array in predictions) if is_open else None
        try:
            job.second = self._service.submit(
                [flat(array) for array in predictions], n_items, Layout(lane, row_bytes, shapes), self, job
            )
        except RequestError as error:
            self._group.failed(job, _named(error))

    def cancel(self, job: GroupJob) -> None:
        """Nobody waits for it any more."""
        if self._service is not None and job.second is not None:
            self._service.cancel(job.second)

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:
        """The engine's `Sink`: the answer is that of the ensemble."""
        self._group.answered(request.context, outputs, shapes)

    def failed(self, request: Request, error: RequestError) -> None:
        """The engine's `Sink`: so does the ensemble's request."""
        job: GroupJob = request.context
        if not job.ended:
            self._group.failed(job, _named(error))

    def fail_everything(self, error: RequestError) -> None:
        """The ensemble stops."""
        if self._service is not None:
            for job in self._service.member.dispatcher.unfinished_jobs():
                self._service.fail(job.owner, error)

    def close(self) -> None:
        """Give the memory back, once the worker is gone."""
        if self._service is not None:
            self._service.arena.close()
            self._service = None

    def check(self) -> None:
        """Assert the service's laws."""
        if self._service is not None:
            self._service.check()


class _CombinerService(Service):
    """A service that no client sees."""

    def __init__(
        self, stage: Combiner, launch: ModelLaunch, settings: ServiceSettings, parts: dict[str, Any]
    ) -> None:
        self._stage = stage
        rules = replace(settings.rules, policy=Policy.EAGER, batch_timeout_s=0.0, queue_timeout_s=None)
        super().__init__(launch.name, "1", launch, replace(settings, rules=rules, deadline_s=None), **parts)

    def member_ready(self, member: Member) -> None:
        """Tell the stage."""
        super().member_ready(member)
        self._stage.ready()

    def member_lost(self, reason: str) -> None:
        """Tell the stage."""
        super().member_lost(reason)
        self._stage.lost(reason)

    def member_failed(self, member: Member, reason: str) -> None:
        """Tell the stage."""
        super().member_failed(member, reason)
        self._stage.gave_up(reason)


def _named(error: RequestError) -> RequestError:
    return type(error)(f"rule: {error}")
