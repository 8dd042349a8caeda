"""Around every test: its own cache folder, and no child process, thread, socket or memory segment left."""

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
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep profiles away from the user's cache; in the environment, so that child processes do, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARTITA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _session_leaves_nothing() -> Iterator[None]:
    with nothing_left_behind():
        yield
