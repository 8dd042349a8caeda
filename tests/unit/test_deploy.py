"""What a plan says of how its workers are launched."""

import pytest

from partita.core.plan import InstanceSpec, Plan
from partita.deploy import SPIN_BELOW_MS, suited
from partita.engine.instance import ModelLaunch


def plan(expected_ms: float | None, *executions: int) -> Plan:
    instance = InstanceSpec(threads=2, batch=sum(executions), executions=executions)
    return Plan(instances=(instance,), cores=2, batch=sum(executions), expected_ms=expected_ms)


@pytest.mark.parametrize(
    ("expected_ms", "executions", "spins"),
    [
        (SPIN_BELOW_MS, (1,), False),
        (SPIN_BELOW_MS - 0.1, (1,), True),
        (8 * SPIN_BELOW_MS, (4, 4), False),  # it is one item that counts, for one may come alone
        (8 * SPIN_BELOW_MS - 1, (4, 4), True),
        (None, (1,), True),  # nothing is known of the model
    ],
)
def test_threads_spin_unless_items_are_known_to_take_long(
    expected_ms: float | None, executions: tuple[int, ...], spins: bool
) -> None:
    launch = ModelLaunch(name="m", path="m.onnx", runtime="onnxruntime", options={"optimization": "basic"})
    options = suited(launch, plan(expected_ms, *executions)).options
    assert options == {"optimization": "basic"} | ({} if spins else {"spin": False})


@pytest.mark.parametrize(("runtime", "options"), [("onnxruntime", {"spin": True}), ("python", {})])
def test_what_the_user_says_stands_and_other_runtimes_are_left_alone(
    runtime: str, options: dict[str, str | int | float | bool]
) -> None:
    launch = ModelLaunch(name="m", path="m", runtime=runtime, options=options)
    assert suited(launch, plan(100.0, 1)) is launch
