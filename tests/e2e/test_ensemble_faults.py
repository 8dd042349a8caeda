"""What is heard of members and rules that fail, over HTTP and gRPC, offline, and from the command line."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from partita.core.errors import RequestError
from partita.embedded import Server
from partita.engine.instance import Instance
from partita.engine.request import Request
from partita.machines.work import Job
from partita.offline import predict_with
from partita.settings import ModelSettings, ServerSettings, Settings
from partita.system.addresses import Address
from partita.system.spawner import SPARES
from tests import models
from tests.e2e.test_ensemble import ensemble, post, request
from tests.engine_driver import until
from tests.ensembles import EXIT, RAISE, WIDE, items, scaled
from tests.process.test_ensemble_rules import RULE

triton = pytest.importorskip("tritonclient.grpc")

pytestmark = pytest.mark.e2e

LOCAL = Address("127.0.0.1", 0)
DOORS = Settings(server=ServerSettings(http=LOCAL, grpc=LOCAL, metrics=None, management=None, cores=2))
Answer = tuple[list[float] | None, str]
"""(what was answered, or None, what was said: the missing members or the error)."""


def over_http(server: Server, x: Any) -> Answer:
    status, answer = post(server, "/v2/models/both/infer", request(x))
    if status != 200:
        return None, answer["error"]
    return answer["outputs"][0]["data"], answer.get("parameters", {}).get("missing_members", "")


def over_grpc(server: Server, x: Any) -> Answer:
    with triton.InferenceServerClient(str(server.head.ports["grpc"])) as client:
        tensor = triton.InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        try:
            result = client.infer("both", [tensor])
        except triton.InferenceServerException as error:
            return None, str(error)
        parameters = result.get_response().parameters
        missing = parameters["missing_members"].string_param if "missing_members" in parameters else ""
        return result.as_numpy("y").ravel().tolist(), missing


@pytest.fixture(scope="module", params=["fail", "degrade"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def serving(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = ensemble(tmp_path_factory.mktemp("doors"), f'on_member_failure = "{policy}"')
    with Server([file], settings=DOORS, tune="never", ports=True) as running:
        running._call(_until_whole(running))  # what is there later than this was left behind
        yield running


@pytest.fixture
def server(serving: Server) -> Iterator[Server]:
    """It has all of its workers and spares again when the test ends: the next is held against that."""
    yield serving
    serving._call(_until_whole(serving))


async def _until_whole(server: Server) -> None:
    engine = server.head.engine
    workers = engine.service("both").member.instances
    spares = 0 if engine._spawner._keeper is None else SPARES
    await until(lambda: all(one.is_ready for one in workers.values()) and engine._spawner.waiting == spares)


@pytest.mark.parametrize("door", [over_http, over_grpc])
@pytest.mark.parametrize("what", [RAISE, EXIT, WIDE])
def test_a_member_that_fails_is_named_and_the_next_request_is_answered_by_all(
    server: Server, policy: str, door: Callable[[Server, Any], Answer], what: int
) -> None:
    answered, said = door(server, items(1, what=what))
    if policy == "fail" or what == WIDE:  # who is wrong, of two that answer differently, nobody knows
        assert answered is None
        assert "member b" in said
    else:
        assert answered == pytest.approx([1, 2, 3])
        assert said == "b"
    answered, said = door(server, items(2))
    assert answered == pytest.approx([11.0, 16.5, 22.0])
    assert not said


def came_back(one: Instance, after: int) -> bool:
    """Is the instance ready in another process than the one it had?"""
    return one.is_ready and one.pid != after


@pytest.mark.parametrize("door", [over_http, over_grpc])
def test_kill_9_of_a_members_worker_is_not_seen_by_any_client(
    server: Server, door: Callable[[Server, Any], Answer]
) -> None:
    service = server.head.engine.service("both")
    before, answers, over = service.statistics.worker_deaths, list[Answer](), threading.Event()

    def client() -> None:
        while not over.is_set():
            answers.append(door(server, items(len(answers))))

    clients = [threading.Thread(target=client) for _ in range(2)]
    for one in clients:
        one.start()
    victims = [one for one in service.member.instances.values() if one.spec.model == "b"]
    try:
        for victim in victims:  # one after another: a request that is in two deaths fails, as documented
            pid = victim.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            server._call(until(partial(came_back, victim, pid)))
    finally:
        over.set()
        for one in clients:
            one.join()
    assert answers
    assert all(answered is not None and not said for answered, said in answers), answers
    assert service.statistics.worker_deaths == before + len(victims) == before + 2


# --- offline --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "said"), [(RAISE, "bad item"), (WIDE, r"\[6\]"), (EXIT, "status 3")])
def test_offline_the_segment_and_the_member_are_named(
    server: Server, policy: str, what: int, said: str
) -> None:
    # Of a wide item among others the member itself may find that its executions differ: all of them are wide.
    x = items(*range(300))
    x[slice(128, 256) if what == WIDE else 150, 3] = what
    if policy == "fail" or what == WIDE:
        with pytest.raises(RequestError, match=rf"^segment 1: .*member b.*{said}"):
            predict_with(server, "both", x)
    else:
        answer = predict_with(server, "both", x)
        wanted = x[:, :3] * 5.5
        wanted[128:256] = x[128:256, :3]
        np.testing.assert_allclose(answer["y"], wanted, rtol=1e-6)
        assert answer.missing == ("b",)
    x[:, 3] = 0
    np.testing.assert_allclose(predict_with(server, "both", x[:150])["y"], x[:150, :3] * 5.5, rtol=1e-6)


@pytest.mark.parametrize(("what", "said"), [(101, "cannot combine"), (102, "status 1"), (103, "limit")])
def test_offline_the_segment_whose_rule_fails_is_named_and_another_model_answers(
    tmp_path: Path, what: int, said: str
) -> None:
    (tmp_path / "rule.py").write_text(dedent(RULE))
    file = ensemble(tmp_path, 'rule = "rule.py:Spread"')
    alone = Path(scaled(tmp_path, "alone", 3.0).path.rpartition(":")[0])
    settings = Settings(model={"both": ModelSettings(execution_limit_s=1.0)})
    with Server([file, alone], cores=2, tune="never", settings=settings) as running:
        x = np.concatenate([items(*range(1, 65)), np.tile(items(what), (128, 1))])
        with pytest.raises(RequestError, match=rf"^segment 1: rule: .*{said}"):
            predict_with(running, "both", x, segment=64)
        y = running.predict("both", {"x": items(1)})["spread"]
        np.testing.assert_array_equal(y, 9 * items(1)[:, :3])
        (other,) = [name for name in running.head.engine.services if name != "both"]
        np.testing.assert_array_equal(running.predict(other, items(2))["y"], 3 * items(2)[:, :3])
        assert running.head.engine.service(other).statistics.worker_deaths == 0


def test_300_items_in_segments_have_the_bits_of_a_plain_loop_over_networks(tmp_path: Path) -> None:
    import onnxruntime as ort

    for name, hidden in (("a", 16), ("b", 64), ("c", 200)):
        models.mlp(tmp_path / f"{name}.onnx", 8, hidden)
    file = tmp_path / "three.toml"
    file.write_text("".join(f'[[member]]\npath = "{name}.onnx"\nruntime = "onnxruntime"\n' for name in "abc"))
    x = np.random.default_rng(7).standard_normal((300, 8)).astype(np.float32)
    plain = ort.SessionOptions()
    plain.intra_op_num_threads = 1
    sessions = [ort.InferenceSession(str(tmp_path / f"{name}.onnx"), plain) for name in "abc"]
    total = np.zeros((300, 10), np.float32)
    with Server([file], cores=2, tune="never") as running:
        (service,) = running.head.engine.services.values()
        sizes: list[int] = []
        admit = service.member.admit

        def counted(request: Request) -> Job:
            sizes.append(request.n_items)
            return admit(request)

        service.member.admit = counted  # type: ignore[method-assign]
        y = predict_with(running, "three", x)["y"]
        batch = max(one.spec.batch for one in service.member.instances.values())
    assert sizes == [128, 128, 44]
    for session in sessions:
        for first in (0, 128, 256):
            for at in range(first, min(first + 128, 300), batch):
                end = min(at + batch, first + 128, 300)
                total[at:end] += session.run(None, {"x": x[at:end]})[0]
    assert y.tobytes() == (total / np.float32(3)).tobytes()


# --- the command line -----------------------------------------------------------------------------


def test_a_member_without_memory_ends_serve_with_its_name_and_leaves_nothing(tmp_path: Path) -> None:
    file = ensemble(tmp_path)
    large = tmp_path / "b" / "model.py"
    large.write_text(
        large.read_text()
        + "\n    def load(self, context):\n        self.weights = np.ones(1 << 60, np.float32)\n"
    )
    ports = ["--http", "127.0.0.1:0", "--management", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    mark = {"PARTITA_TEST_MARK": str(tmp_path)}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "partita.cli",
            "serve",
            str(file),
            *ports,
            "--grpc",
            "127.0.0.1:0",
            "--tune",
            "never",
        ],
        env={**os.environ, **mark},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "member b" in done.stderr
    assert "allocate" in done.stderr
    assert not [pid for pid in Path("/proc").iterdir() if _carries(pid, f"PARTITA_TEST_MARK={tmp_path}")]


def _carries(process: Path, mark: str) -> bool:
    try:
        return process.name.isdigit() and mark.encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


LARGE = """
import json, resource, sys
from pathlib import Path
import numpy as np
import partita
from partita.cli.app import run as cli

def held():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem", "VmData")}

if __name__ == "__main__":
    file, x, y, limit = *sys.argv[1:4], int(sys.argv[4])
    before = held()
    resource.setrlimit(resource.RLIMIT_DATA, (before["VmData"] + limit, before["VmData"] + limit))
    most, seen = 0, []

    def told(done, total):
        global most
        now = held()
        most = max(most, now["RssAnon"] + now["RssShmem"] - before["RssAnon"] - before["RssShmem"])
        seen.append((done, total))

    answer = partita.predict(file, x, output=y, progress=told, cores=1, tune="never", segment=32)
    try:
        np.array(answer["y"])
        fits = True
    except MemoryError:
        fits = False
    print(json.dumps({"most": most, "seen": seen, "fits": fits}), flush=True)
    Path(y).unlink()
    sys.exit(cli(["predict", file, x, "-o", y, "--segment", "32", "--tune", "never", "--cores", "1"]))
"""
COPIES = """
class Copies:
    inputs = {"x": {"shape": [-1, 16384], "datatype": "FP32"}}
    outputs = {"y": {"shape": [-1, 16384], "datatype": "FP32"}}

    def infer(self, batch):
        return {"y": batch["x"] * %d}
"""


def test_predict_over_more_than_memory_on_both_sides(tmp_path: Path) -> None:
    """192 MiB in and out, where the process may take 128 MiB more for data than it has already."""
    n_items, limit = 3072, 128 << 20
    members = ""
    for name, scale in (("a", 1), ("b", 3)):
        (tmp_path / f"{name}.py").write_text(COPIES % scale)
        members += f'[[member]]\npath = "{name}.py"\n'
    (tmp_path / "copies.toml").write_text("batch_sizes = [8]\n" + members)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(n_items, 16384))
    x[::100, 5] = np.arange(31)
    x.flush()
    (tmp_path / "large.py").write_text(LARGE)
    arguments = [str(tmp_path / name) for name in ("large.py", "copies.toml", "x.npy", "y.npy")]
    done = subprocess.run(
        [sys.executable, *arguments, str(limit)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[0])
    assert not found["fits"], "else the limit says nothing"
    assert found["most"] < limit, "and of shared memory"
    assert found["seen"] == [[done, n_items] for done in range(32, n_items + 1, 32)]
    assert f"{n_items} items in" in done.stderr
    y = np.load(tmp_path / "y.npy", mmap_mode="r")
    assert y.shape == (n_items, 16384)
    np.testing.assert_array_equal(y[::100, 5], 2 * np.arange(31))
    assert float(y[1::100].max()) == 0.0
