"""Every benchmark of ``python -m benchmarks`` takes the arguments that it is given there."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.__main__ import ENTRIES, Entry


class Parsed(Exception):
    """Arguments were parsed; these were not known."""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_quick_arguments_are_known(entry: Entry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> None:
        raise Parsed(parser.parse_known_args(argv)[1])

    main = importlib.import_module(f"benchmarks.{entry.name}").main
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(Parsed) as parsed:
        main(["--json", str(tmp_path / "figures.json"), *entry.quick])
    assert parsed.value.args == ([],)
