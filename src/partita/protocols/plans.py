"""The plan of each model, what was decided about it and why; and changing it, behind the token."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from partita.core.errors import InvalidInput, InvalidRequest, ModelUnavailable, SwitchFailed
from partita.core.plan import InstanceSpec, Plan
from partita.engine.switching import Switch
from partita.protocols.access import Access

Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]


class InstancesAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some equal instances of a plan that a client asks for."""

    threads: Positive
    batch: Positive
    count: Positive = 1
    micro_batch: Positive | None = None


class PlanAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan that a client asks for."""

    instances: tuple[InstancesAsked, ...]


class Plans(Protocol):
    """What is behind the routes."""

    def plan(self, model: str, version: str = "") -> Plan:
        """Return the plan in force. Raises `ModelNotFound`."""

    def plans(self) -> dict[str, Plan]:
        """Return the plan in force of every model."""

    def divisions(self) -> list[dict[str, Any]]:
        """Return how the cores were divided among all models, and why, oldest first."""

    def decisions(self, model: str, version: str = "") -> list[dict[str, Any]]:
        """Return the controller's log, oldest first; empty where nothing adapts."""

    def tuning(self, model: str, version: str = "") -> dict[str, Any] | None:
        """Return how far measuring the model beside its traffic has come; None where it was not begun."""

    def switches(self, model: str, version: str = "") -> list[dict[str, Any]]:
        """Return the latest switches, oldest first."""

    def switch(self, model: str, plan: Plan, reason: str, version: str = "") -> Switch:
        """Place a plan and switch to it. Raises `InvalidInput`, `NoFeasiblePlan` or `SwitchFailed`."""


class PlanRoutes:
    """``/v2/models/NAME/plan`` and, of all models, ``/v2/plans``: seen by all who reach the port.

    Changed with a token.
    """

    def __init__(self, plans: Plans, access: Access) -> None:
        self._plans = plans
        self._access = access

    def routes(self) -> list[Route]:
        """Return them."""
        routes = []
        for part in ("", "/versions/{version}"):
            path = f"/v2/models/{{model}}{part}/plan"
            routes.append(Route(path, self.show, methods=["GET"]))
            routes.append(Route(path, self.change, methods=["POST"]))
        routes.append(Route("/v2/plans", self.show_all, methods=["GET"]))
        return routes

    async def show_all(self, request: Request) -> Response:  # noqa: ARG002
        """Every model's plan and cores, how the cores were divided among them, and why."""
        plans = self._plans.plans()
        models = [{"model": name, "plan": str(plan), "cores": plan.placed_on} for name, plan in plans.items()]
        return _json({"models": models, "divisions": self._plans.divisions()})

    async def show(self, request: Request) -> Response:
        """The plan in force, its switches and the decisions behind them."""
        return _json(self._document(*_named(request)))

    async def change(self, request: Request) -> Response:
        """Switch to another plan, and answer when it is in force."""
        given = request.headers
        self._access.check(given.get("authorization"), given.get("host"), given.get("origin"))
        try:
            asked = msgspec.json.decode(await request.body(), type=PlanAsked)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not a plan: {error}") from None
        model, version = _named(request)
        try:
            plan = unplaced(asked.instances)
            switch = self._plans.switch(model, plan, "asked for by an operator", version)
            await switch.until_accepting()
        except InvalidInput as error:
            raise InvalidRequest(str(error)) from None
        except SwitchFailed as error:
            raise ModelUnavailable(str(error)) from None
        return _json(self._document(model, version))

    def _document(self, model: str, version: str) -> dict[str, Any]:
        plan = self._plans.plan(model, version)
        return {
            "model": model,
            "plan": str(plan),
            "instances": [
                {
                    "threads": i.threads,
                    "batch": i.batch,
                    "micro_batch": i.micro_batch,
                    "cores": list(i.cores),
                    **({"runtime": i.runtime} if i.runtime else {}),
                }
                for i in plan.instances
            ],
            **({} if plan.lowered is None else {"precision": msgspec.to_builtins(plan.lowered)}),
            "tuning": self._plans.tuning(model, version),
            "switches": self._plans.switches(model, version),
            "decisions": self._plans.decisions(model, version),
        }


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


def unplaced(groups: Sequence[InstancesAsked]) -> Plan:
    """Return these instances as a plan whose cores are still to be assigned."""
    specs: list[InstanceSpec] = []
    for group in groups:
        r = min(group.micro_batch or group.batch, group.batch)
        full, rest = divmod(group.batch, r)
        executions = (r,) * full + ((rest,) if rest else ())
        specs += [InstanceSpec(threads=group.threads, batch=group.batch, executions=executions)] * group.count
    if not specs:
        raise InvalidInput("a plan needs at least one instance")
    return Plan(
        instances=tuple(specs), cores=sum(s.threads for s in specs), batch=sum(s.batch for s in specs)
    )


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")
