"""Kill workers in mid-execution under load, and check every answer: ``python -m benchmarks.chaos``.

A real server on a loopback port, asked over HTTP (V2, binary tensors) by many clients at once, while one
worker after the other is killed with SIGKILL as it executes. Every request has numbers of its own, and every
answer is compared, byte by byte, with what this very request must get. The bar: no answer mixed up, none
missing, none stuck, and no error but the documented one for a request that was in two deaths.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.figures import options
from partita.core.plan import InstanceSpec, Plan
from partita.engine.engine import Deployment
from partita.engine.instance import ModelLaunch
from partita.engine.service import Service, ServiceSettings
from partita.head import Head
from partita.machines.dispatcher import BatchingRules
from partita.machines.work import Job
from partita.settings import ServerSettings
from partita.system.addresses import Address

CLIENTS = 64
MOST_ITEMS = 17
STUCK_S = 60.0
"""An answer that takes longer than this counts as stuck."""
AGAIN = 0.25
"""Share of kills that are aimed at what is being executed for the second time."""
TOO_LONG_S = 1800.0
FACTOR = 3

MODEL = """
import time
import numpy as np

class Chaos:
    inputs = {"x": {"shape": [-1, 2], "datatype": "INT64"}}
    outputs = {"y": {"shape": [-1, 2], "datatype": "INT64"}}

    def infer(self, batch):
        until = time.perf_counter() + 0.001
        y = FACTOR * batch["x"] + 1
        while time.perf_counter() < until:
            pass
        return {"y": y}
"""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of all requests."""

    requests: int = 0
    answered: int = 0
    double_deaths: int = 0
    """Failed with the documented error of a request that was in two worker deaths."""
    mixed_up: int = 0
    missing: int = 0
    """The connection ended without an answer."""
    stuck: int = 0
    other_errors: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    kills_in_execution: int = 0
    """Kills after which a batch really had to be run again."""
    worker_deaths: int = 0
    double_deaths_counted_by_server: int = 0
    items: int = 0
    seconds: float = 0.0
    longest_answer_s: float = 0.0
    memory_given_back: bool = False

    def faults(self, kills: int) -> list[str]:
        """Return in words what is against the bar; empty = passed."""
        found = {
            "answers mixed up": self.mixed_up,
            "answers missing": self.missing,
            "requests stuck": self.stuck,
            "other errors": sum(self.other_errors.values()),
            "requests unaccounted for": abs(self.requests - self.answered - self.double_deaths),
            "kills in execution too few": max(0, kills - self.kills_in_execution),
            "errors that the server counts otherwise": abs(
                self.double_deaths - self.double_deaths_counted_by_server
            ),
            "item memory not given back": int(not self.memory_given_back),
        }
        return [f"{count} {what}" for what, count in found.items() if count]


@dataclass(frozen=True, slots=True)
class Goal:
    """How much is to be done at least: both."""

    requests: int
    kills: int

    def is_reached_by(self, outcome: Outcome) -> bool:
        return outcome.requests >= self.requests and outcome.kills_in_execution >= self.kills


FULL, QUICK = Goal(100_000, 100), Goal(5_000, 10)


class Clients:
    """Closed-loop clients that share one supply of requests, each with numbers never used before."""

    def __init__(self, address: Address, outcome: Outcome, goal: Goal, seed: int) -> None:
        self._address = address
        self._goal = goal
        self._outcome = outcome
        self._sizes = np.random.default_rng(seed)
        self._next = 1
        self.ended = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        connection = None
        while not self._goal.is_reached_by(self._outcome):
            if connection is None:
                connection = await asyncio.open_connection(self._address.host, self._address.port)
            if not await self._ask(*connection):
                connection[1].close()
                connection = None
        if connection is not None:
            connection[1].close()

    def _numbers(self) -> np.ndarray:
        size = int(self._sizes.integers(1, MOST_ITEMS + 1))
        first, self._next = self._next, self._next + size
        x = np.empty((size, 2), np.int64)
        x[:, 0] = np.arange(first, first + size)
        x[:, 1] = first
        return x

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ask once and count the outcome; False when the connection is no good any more."""
        x = self._numbers()
        outcome = self._outcome
        outcome.requests += 1
        outcome.items += len(x)
        began = time.perf_counter()
        writer.write(request(x))
        try:
            async with asyncio.timeout(STUCK_S):
                status, body, stays = await read_answer(reader)
        except TimeoutError:
            outcome.stuck += 1
            return False
        except (asyncio.IncompleteReadError, ConnectionError):
            outcome.missing += 1
            return False
        finally:
            self.ended += 1
        outcome.longest_answer_s = max(outcome.longest_answer_s, time.perf_counter() - began)
        self._judge(status, body, x)
        return stays

    def _judge(self, status: int, body: bytes, x: np.ndarray) -> None:
        outcome = self._outcome
        expected = (FACTOR * x + 1).tobytes()
        if status == 200:
            if body[-len(expected) :] == expected and body.count(b'"shape":[%d,2]' % len(x)) == 1:
                outcome.answered += 1
            else:
                outcome.mixed_up += 1
        elif b"died twice executing this request" in body:
            outcome.double_deaths += 1
        else:
            text = f"{status} {body[:200].decode(errors='replace')}"
            outcome.other_errors[text] = outcome.other_errors.get(text, 0) + 1


def request(x: np.ndarray) -> bytes:
    """Return the whole HTTP request for these items, (n, 2) int64."""
    data = x.tobytes()
    tensor = {
        "name": "x",
        "shape": list(x.shape),
        "datatype": "INT64",
        "parameters": {"binary_data_size": len(data)},
    }
    document = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        "POST /v2/models/chaos/infer HTTP/1.1\r\nHost: chaos\r\n"
        f"Inference-Header-Content-Length: {len(document)}\r\n"
        f"Content-Length: {len(document) + len(data)}\r\n\r\n"
    )
    return head.encode() + document + data


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Return the status and the body of one answer, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    stays = b"\r\nconnection: close\r\n" not in head
    return int(head[9:12]), await reader.readexactly(int(length)), stays


class Killer:
    """Kills whichever worker is executing, spread over the requests."""

    def __init__(self, service: Service, outcome: Outcome, seed: int) -> None:
        self._service = service
        self._outcome = outcome
        self._draw = np.random.default_rng(seed + 1)

    async def run(self, goal: Goal, clients: Clients) -> None:
        """Kill until as many as wanted were hit in mid-execution."""
        while self._outcome.kills_in_execution < goal.kills:
            due = int(0.95 * goal.requests * self._outcome.kills_in_execution / goal.kills)
            while clients.ended < due:
                await asyncio.sleep(0.001)
            await self._kill_one(again=self._draw.random() < AGAIN)

    async def _kill_one(self, *, again: bool) -> None:
        while self._service.member.ready_instances < len(self._service.member.instances):
            await asyncio.sleep(0.001)
        await asyncio.sleep(float(self._draw.random()) * 0.003)  # anywhere within an execution
        await self._kill(deaths=0)
        if again:
            await self._kill(deaths=1)

    async def _kill(self, *, deaths: int) -> None:
        """Kill a worker that executes what was in this many deaths, if there is one soon."""
        statistics = self._service.statistics
        for _ in range(5000):
            for number, instance in self._service.member.instances.items():
                job = self._executing(number)
                if job is not None and job.deaths == deaths and instance.pid is not None:
                    dead = statistics.worker_deaths
                    os.kill(instance.pid, signal.SIGKILL)
                    self._outcome.kills += 1
                    while statistics.worker_deaths == dead:
                        await asyncio.sleep(0)
                    self._outcome.kills_in_execution += job.deaths > deaths
                    return
            await asyncio.sleep(0.0002)

    def _executing(self, instance: int) -> Job | None:
        batch = self._service.member.dispatcher.executing(instance)
        return None if batch is None else batch.pieces[0][0]


def deployment(folder: Path) -> Deployment:
    """Return the model on two instances of different b, on cores of their own where there are two."""
    file = folder / "chaos.py"
    file.write_text(f"FACTOR = {FACTOR}\n{MODEL}")
    cores = sorted(os.sched_getaffinity(0))
    specs = [InstanceSpec(threads=1, batch=b, cores=(c,)) for b, c in ((16, cores[0]), (8, cores[-1]))]
    return Deployment(
        name="chaos",
        version="1",
        launch=ModelLaunch(name="chaos", path=f"{file}:Chaos", runtime="python"),
        settings=ServiceSettings(rules=BatchingRules(max_queue_items=4 * CLIENTS * MOST_ITEMS)),
        plan=Plan(instances=tuple(specs), cores=2, batch=24),
    )


async def chaos(goal: Goal, seed: int, say: Callable[[str], None]) -> Outcome:
    """Run it all; returns the counts."""
    outcome = Outcome()
    settings = ServerSettings(http=Address("127.0.0.1", 0), management=None, metrics=None)
    head = Head(settings, asyncio.get_running_loop())
    with tempfile.TemporaryDirectory() as folder:
        try:
            await head.start([deployment(Path(folder))])
            service = head.engine.service("chaos")
            clients = Clients(head.ports["http"], outcome, goal, seed)
            began = time.perf_counter()
            killer = asyncio.create_task(Killer(service, outcome, seed).run(goal, clients))
            progress = asyncio.create_task(_progress(clients, goal, outcome, say))
            async with asyncio.timeout(TOO_LONG_S):
                await clients.run()
            outcome.seconds = time.perf_counter() - began
            for task in (killer, progress):
                task.cancel()
            await asyncio.gather(killer, progress, return_exceptions=True)
            head.engine.check()
            outcome.memory_given_back = service.arena.owned_items() == 0
            outcome.worker_deaths = service.statistics.worker_deaths
            outcome.double_deaths_counted_by_server = service.statistics.double_deaths
        finally:
            await head.stop(10.0)
    return outcome


async def _progress(clients: Clients, goal: Goal, outcome: Outcome, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(5.0)
        say(
            f"{clients.ended} of {goal.requests} requests, {outcome.kills_in_execution} of {goal.kills} kills"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the counts and the verdict; 0 if the bar is met."""
    parser = options(__doc__, "chaos")
    parser.add_argument("--requests", type=int, default=None, help="100,000; 5,000 if quick")
    parser.add_argument("--kills", type=int, default=None, help="100; 10 if quick")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    usual = QUICK if given.quick else FULL
    goal = Goal(given.requests or usual.requests, usual.kills if given.kills is None else given.kills)
    outcome = uvloop.run(chaos(goal, given.seed, lambda text: print(text, file=sys.stderr)))
    faults = outcome.faults(goal.kills)
    counts = {**asdict(outcome), "faults": faults}
    print(json.dumps(counts, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(counts, indent=1) + "\n")
    print(f"FAILED: {'; '.join(faults)}" if faults else "passed: every answer was its own request's")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
