"""Checks around every test: no child process, thread, socket or memory segment may outlive it."""

from collections.abc import Iterator

import pytest

from tests.leaks import nothing_left_behind


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
def _session_leaves_nothing() -> Iterator[None]:
    with nothing_left_behind():
        yield
