"""Rules of ensembles that run in a worker: classes of a user, and networks that stack predictions."""

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from partita.core.errors import ModelUnavailable
from partita.engine.instance import ModelLaunch
from tests import models
from tests.engine_driver import add, ask, engine, plan, run
from tests.ensembles import ROW, deployment, items, rows, scaled, served, start

pytestmark = pytest.mark.process

RULE = """
import os, time

class Spread:
    \"\"\"Largest minus smallest prediction. The first number of the request says what else to do.\"\"\"

    def start(self, n_items, members):
        self.n_items, self.members, self.seen = n_items, members, {}

    def update(self, rows, member, predictions):
        self.seen.setdefault(member, []).append((rows, predictions))

    def finish(self):
        import numpy as np
        assert list(self.seen) == self.members
        given = np.stack([self.seen[m][0][1] for m in self.members])
        assert given.shape[1] == self.n_items
        what = int(given[0, 0, 0])
        if what == 101:
            raise ValueError("cannot combine these")
        if what == 102:
            os._exit(1)
        if what == 103:
            time.sleep(3600)
        spread = given.max(axis=0) - given.min(axis=0)
        return {"spread": spread, "items": np.full((self.n_items, 1), self.n_items)}
"""


def rule_launch(folder: Path, cls: str = "Spread", source: str = RULE) -> ModelLaunch:
    (folder / "rule.py").write_text(dedent(source))
    return ModelLaunch(name="all-rule", path=f"{folder}/rule.py:{cls}", runtime="rule")


def test_a_users_rule_gets_every_request_by_itself(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", -2.0)]

    async def main() -> None:
        async with served(launches, rule="gathered", combiner=rule_launch(tmp_path)) as service:
            assert [spec.name for spec in service.signature.outputs] == ["spread", "items"]
            asked = [ask(service, items(*range(1, n + 1)), layout=ROW) for n in (1, 20, 3, 50)]
            for one, n in zip(asked, (1, 20, 3, 50), strict=True):
                spread, counted = await one.result()
                np.testing.assert_array_equal(spread, 3 * items(*range(1, n + 1))[:, :3])
                np.testing.assert_array_equal(counted, np.full((n, 1), n))

    run(main)


def test_a_rule_that_raises_exits_or_hangs_costs_its_own_request(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", -2.0)]

    async def main() -> None:
        combiner = rule_launch(tmp_path)
        async with served(launches, rule="gathered", combiner=combiner, execution_limit_s=1.0) as service:
            for what, code, said in (
                (101, "inference_failed", "cannot combine these"),
                (102, "worker_died", "exited with status 1"),
                (103, "worker_died", "execution limit"),
            ):
                bad = ask(service, items(what), layout=ROW)
                good = ask(service, items(1), layout=ROW)
                error = await bad.error()
                assert (error.code, str(error).split(":")[0]) == (code, "rule")
                assert said in str(error)
                np.testing.assert_array_equal((await good.result())[0], 3 * items(1)[:, :3])

    run(main)


def test_other_models_do_not_notice_a_rule_that_hangs(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", -2.0)]
    alone = scaled(tmp_path, "alone", 7.0)

    async def main() -> None:
        combiner = rule_launch(tmp_path)
        async with engine() as made:
            other = add(made, alone, plan(8))
            service = start(
                made, deployment(launches, rule="gathered", combiner=combiner, execution_limit_s=1.0)
            )
            await made.until_ready()
            hung = ask(service, items(103), layout=ROW)
            while not hung.future.done():
                y = await rows(ask(other, items(5), layout=ROW))
                np.testing.assert_array_equal(y, 7 * items(5)[:, :3])
            assert (await hung.error()).code == "worker_died"
            assert (other.statistics.worker_deaths, other.statistics.failures) == (0, 0)
            assert other.statistics.answered > 10, "all along"

    run(main)


def test_a_rule_that_cannot_be_loaded_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine() as made:
            launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", -2.0)]
            combiner = rule_launch(
                tmp_path, "Half", "class Half:\n    def start(self, n_items, members): ...\n"
            )
            service = start(made, deployment(launches, rule="gathered", combiner=combiner))
            with pytest.raises(ModelUnavailable, match=r"rule: .*has no method update, finish"):
                await service.until_ready()

    run(main)


def test_stacking_gives_a_network_the_predictions_side_by_side(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", -2.0)]
    stack = ModelLaunch(
        name="all-stack", path=str(models.linear(tmp_path / "meta.onnx", 6, 3)), runtime="onnxruntime"
    )
    weight, bias = models.linear_weights(6, 3)

    async def main() -> None:
        async with served(launches, rule="gathered", combiner=stack) as service:
            x = np.random.default_rng(3).standard_normal((40, 4)).astype(np.float32)
            y = await rows(ask(service, x, layout=ROW))
            wanted = np.concatenate([x[:, :3], -2 * x[:, :3]], axis=1) @ weight + bias
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
            assert [spec.name for spec in service.signature.outputs] == ["y"]

    # Members with an open axis cannot be stacked; these say what they answer.
    for launch in launches:
        file = Path(launch.path.rpartition(":")[0])
        file.write_text(file.read_text().replace('"shape": [-1, -1]', '"shape": [-1, 3]'))
    run(main)
