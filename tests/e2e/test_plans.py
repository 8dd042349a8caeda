"""Plans of a running server: shown, changed by hand over HTTP and in Python, and following the load."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from concurrent.futures import wait
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from partita.adaptation import Adaptation
from partita.core.errors import InvalidInput, ModelNotFound, NoFeasiblePlan, SwitchFailed
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.embedded import Server
from partita.engine.engine import Deployment
from partita.engine.service import ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.machines.handover import Stage
from partita.planning.estimator import EstimatorRules
from partita.planning.switching import SwitchRules
from partita.settings import ServerSettings, Settings
from partita.system.addresses import Address
from tests import models
from tests.e2e.test_serve import Serve
from tests.e2e.test_serve import until as wait_for
from tests.engine_driver import ask, engine, python_model, run, until, xy

CORES = sorted(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(len(CORES) < 2, reason="plans differ on two cores at least"),
]
LOCAL = Address("127.0.0.1", 0)

MODEL = """
    import os
    import numpy as np

    class Model:
        inputs = {"x": {"shape": [-1, 2], "datatype": "INT64"}}
        outputs = {"y": {"shape": [-1, 2], "datatype": "INT64"}}

        def load(self, context):
            if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "broken")):
                raise ValueError("no such weights")

        def infer(self, batch):
            return {"y": 3 * batch["x"] + 1}
"""


def serving(folder: Path, *, ports: bool = False) -> Server:
    (folder / "m").mkdir()
    (folder / "m" / "handler.py").write_text(dedent(MODEL))
    server = ServerSettings(http=LOCAL, metrics=LOCAL, management=LOCAL, token="secret")
    return Server([folder / "m"], cores=2, tune="never", settings=Settings(server=server), ports=ports)


def call(url: str, body: object = None, token: str = "") -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    return json.loads(text) if text.startswith(b"{") else text.decode()


def test_a_plan_is_changed_in_python_while_requests_come(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        x = np.arange(20, dtype=np.int64).reshape(10, 2)
        asked = [server.submit("m", x + n) for n in range(50)]
        assert server.switch("m", (2, 1, 8)) == "⟨2,1,8⟩"
        asked += [server.submit("m", x + n) for n in range(50, 100)]
        assert server.switch("m", (1, 2, 4)) == "⟨1,2,4⟩"
        wait(asked, 60)
        for n, future in enumerate(asked):
            assert np.array_equal(future.result()["y"], 3 * (x + n) + 1)
        with pytest.raises(NoFeasiblePlan, match="free cores"):
            server.switch("m", (3, 1, 1))
        with pytest.raises(InvalidInput, match="at least one instance"):
            server.switch("m")
        with pytest.raises(ModelNotFound):
            server.switch("other", (1, 1, 1))
        (tmp_path / "m" / "broken").touch()
        with pytest.raises(SwitchFailed, match="no such weights"):
            server.switch("m", (2, 1, 8))
        assert np.array_equal(server.predict("m", x)["y"], 3 * x + 1)


def test_a_plan_is_shown_to_everybody_and_changed_with_the_token(tmp_path: Path) -> None:
    with serving(tmp_path, ports=True) as server:
        url = server.url("management") + "/v2/models/m/plan"
        shown = call(url)
        assert (shown["model"], shown["switches"], shown["decisions"]) == ("m", [], [])
        assert [i["threads"] for i in shown["instances"]] == [2]
        wanted = {"instances": [{"threads": 1, "batch": 6, "micro_batch": 2, "count": 2}]}
        code, text = call(url, wanted)
        assert code in (401, 403), text
        assert call(url)["plan"] == shown["plan"]
        changed = call(url, wanted, "secret")
        assert changed["plan"] == "⟨2,1,6⟩"
        assert [i["micro_batch"] for i in changed["instances"]] == [2, 2]
        (switch,) = changed["switches"]
        assert (switch["before"], switch["loads"]) == (shown["plan"], 2)
        assert switch["accepting_ms"] > 0
        too_many = {"threads": 64, "batch": 1}
        bodies: tuple[object, ...] = ("{}", [], {"instances": []}, {"instances": [too_many]}, {"cores": 3})
        for wrong in bodies:
            code, text = call(url, wrong, "secret")
            assert code == 400, (wrong, text)
        (tmp_path / "m" / "broken").touch()
        code, text = call(url, {"instances": [{"threads": 2, "batch": 1}]}, "secret")
        assert (code, "no such weights" in text) == (503, True)
        metrics = call(server.url("metrics") + "/metrics")
        assert 'partita_plan_switches_total{model="m",outcome="accepted",version="1"} 1.0' in metrics
        assert 'partita_plan_switches_total{model="m",outcome="failed",version="1"} 1.0' in metrics
        assert (
            'partita_plan_instances{batch="6",micro_batch="2",model="m",threads="1",version="1"} 2.0'
            in metrics
        )
        assert call(server.url("management") + "/v2/models/none/plan")[0] == 404


SLOW = """
    import time

    class Slow:
        inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
        outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}

        def infer(self, batch):
            time.sleep(0.004 * len(batch["x"]))
            return {"y": 2 * batch["x"] + 1}
"""
PROFILE = Profile(
    ProfilePoint(threads=threads, batch=batch, mean_ms=batch * (8.0 if threads == 2 else 10.0))
    for threads in (1, 2)
    for batch in (1, 2, 4, 8)
)
"""Two cores are best for one item, two instances of one core by far for many."""


@pytest.mark.alone
def test_the_plan_follows_the_load_and_every_decision_is_explained(tmp_path: Path) -> None:
    launch = python_model(tmp_path, SLOW, "Slow")
    fat = Plan(instances=(InstanceSpec(threads=2, batch=1, cores=(CORES[0], CORES[-1])),), cores=2, batch=1)

    async def main() -> None:
        async with engine() as made:
            service = made.add(
                Deployment(
                    name="tricky",
                    version="1",
                    launch=launch,
                    settings=ServiceSettings(rules=BatchingRules()),
                    plan=fat,
                    cores=(CORES[0], CORES[-1]),
                    profile=PROFILE,
                )
            )
            await service.until_ready()
            adaptation = Adaptation(
                made,
                asyncio.get_running_loop(),
                adapts=True,
                warm_bytes=1 << 40,
                estimator=EstimatorRules(interval_s=0.5),
                switching=SwitchRules(switch_s=0.1, dwell_intervals=2),
            )
            adaptation.start()
            ends = False

            async def client(number: int) -> None:
                while not ends:
                    (y,) = await ask(service, xy(number)).result()
                    assert y[0, 0] == 2 * number + 1

            clients = [asyncio.create_task(client(number)) for number in range(16)]
            await until(lambda: service.plan is not None and len(service.plan.instances) == 2)
            await until(lambda: any(d["action"] == "switch" for d in adaptation.decisions("tricky")))
            ends = True
            await asyncio.gather(*clients)
            (switch, *_) = [d for d in adaptation.decisions("tricky") if d["action"] == "switch"]
            assert switch["seen"]["depth"] > 8
            assert switch["expected_gain"] > 0.15
            assert len(switch["considered"]) >= 2
            assert adaptation.switches("tricky")[-1]["outcome"] in ("accepting", "finished")
            assert service.member.switcher is not None
            handover = service.member.switcher.handover
            await until(lambda: handover.numbers(Stage.ASLEEP))
            assert fat.instances[0] in [handover.spec(n) for n in handover.numbers(Stage.ASLEEP)], "kept warm"
            await adaptation.stop()
            assert service.statistics.failures == 0

    run(main)


@pytest.mark.parametrize("cores", ["2", f"{CORES[0]},{CORES[-1]}"])
def test_a_head_on_cores_of_its_own_knows_those_of_the_models(tmp_path: Path, cores: str) -> None:
    head, other = CORES[0], CORES[1] if cores == "2" else CORES[-1]
    models.linear(tmp_path / "a.onnx")
    ports = ["--http", "off", "--metrics", "off", "--management", "127.0.0.1:0", "--disable-token-auth"]
    with Serve(str(tmp_path), "--head-cores", str(head), ports=ports, cores=cores) as server:
        url = f"http://{server.ready()['ports']['management']}"
        wait_for(lambda: call(f"{url}/v2/plans")["divisions"])
        wanted = {"instances": [{"threads": 1, "batch": 6}]}
        changed = call(f"{url}/v2/models/a/plan", wanted)
        assert (changed["plan"], changed["instances"][0]["cores"]) == ("⟨1,1,6⟩", [other])
        models.linear(tmp_path / "b.onnx")
        call(f"{url}/v2/repository/models/b/load", {})
        wait_for(lambda: len(call(f"{url}/v2/plans")["divisions"]) > 1)
        document = call(f"{url}/v2/plans")
        assert [one["cores"] for one in document["models"]] == [[other], [other]]
        assert {one["outcome"] for one in document["divisions"]} == {"fits"}
        server.process.terminate()
        code, _, err = server.end()
        assert code == 0
        assert "stay divided" not in err
