"""So many requests by so many clients, each its share, and the time that all of it took.

A window of time that ends within a batch counts the batch for nothing: at 32 clients and a second a batch
that is worth more than what is to be measured. Work that ends with its last answer has no such edge.
"""

import http.client
from dataclasses import dataclass
from threading import Barrier, Thread
from time import perf_counter
from urllib.parse import urlsplit

from benchmarks.wrk import Post

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Work:
    """Answers a second, from the first request to the last answer, and how long each took, seconds."""

    requests_per_s: float
    latencies_s: tuple[float, ...]


def run(url: str, post: Post, *, clients: int, each: int) -> Work:
    """Let every client send its requests one after the other over a connection of its own.

    Raises `RuntimeError` if one is answered otherwise than with 200.
    """
    host = urlsplit(url).netloc
    ready = Barrier(clients + 1)
    latencies: list[float] = []
    failures: list[str] = []

    def client() -> None:
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        connection.connect()
        ready.wait()
        for _ in range(each):
            begun = perf_counter()
            connection.request("POST", post.path, post.body, dict(post.headers))
            answer = connection.getresponse()
            answer.read()
            latencies.append(perf_counter() - begun)
            if answer.status != 200:
                failures.append(f"{answer.status} {answer.reason}")
                break
        connection.close()

    threads = [Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    begun = perf_counter()
    for thread in threads:
        thread.join()
    took = perf_counter() - begun
    if failures or len(latencies) != clients * each:
        raise RuntimeError(f"{len(latencies)} of {clients * each} answered; {failures[:1]}")
    return Work(len(latencies) / took, tuple(latencies))
