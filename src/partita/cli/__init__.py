"""The command ``partita``. Nothing heavy is imported before a command runs, so that ``--help`` is quick."""

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 success, 2 wrong usage or input, 1 failure, 130 interrupted."""
    from partita.cli.app import run

    sys.exit(run(argv))
