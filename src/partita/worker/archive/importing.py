"""The package ``ts`` for an archive's code: ours, importable in this process alone, under that name."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

NAME = "ts"
HOME = "partita.worker.archive.ts"


class _Alias(MetaPathFinder, Loader):
    """Finds ``ts.x`` as the module `HOME`.x, which is one module under two names."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != NAME and not fullname.startswith(NAME + "."):
            return None
        origin = find_spec(HOME + fullname[len(NAME) :])
        if origin is None:
            return None
        return ModuleSpec(fullname, self, is_package=origin.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(HOME + spec.name[len(NAME) :])
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has put the alias's in its place


def offer_ts() -> None:
    """Let what is imported from now on find ``ts``, even where another package of that name is installed."""
    if not any(isinstance(finder, _Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Alias())
