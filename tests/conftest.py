"""Around every test: its own cache folder, and no child process, thread, socket or memory segment left."""

import compileall
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

import partita
from tests.leaks import nothing_left_behind
from tests.turns import turn

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""Else the library's threads begin anew in what is forked, and abort it where its files are closed."""


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: where it is forbidden, none of our processes keeps its bytecode."""
    if not hasattr(config, "workerinput"):  # of several processes of tests, the one that starts them
        compileall.compile_dir(Path(partita.__file__).parent, quiet=1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the test's turn, before its time limit counts."""
    with turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(autouse=True)
def _test_leaves_nothing() -> Iterator[None]:
    with nothing_left_behind():
        yield


@pytest.fixture(autouse=True, scope="module")
def _module_leaves_nothing() -> Iterator[None]:
    """Catch what a module's own fixtures leave: they are set up before a test and torn down after it."""
    with nothing_left_behind():
        yield


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep profiles away from the user's cache; in the environment, so that child processes do, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARTITA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _session_leaves_nothing() -> Iterator[None]:
    with nothing_left_behind():
        yield
