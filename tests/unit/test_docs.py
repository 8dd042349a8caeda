"""The pages say what the code says: settings, errors, modules, and examples that are right."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from partita import device_file, ensemble_file, settings
from partita.cli.app import cli
from partita.core import errors
from partita.core.process_settings import ProcessSettings
from partita.protocols.oip.inference import STATUS
from partita.reading import read_table, read_toml
from partita.system.addresses import Address

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *ROOT.glob("examples/**/*.md")]
)
SOURCE = ROOT / "src" / "partita"


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def section(page: str, heading: str) -> str:
    """The part of a page below a heading, up to the next one of its level or higher."""
    level = heading.split(" ", maxsplit=1)[0]
    _, _, rest = page.partition(f"\n{heading}\n")
    assert rest, f"no section {heading!r}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, list[str]]:
    """Tables' rows by their first cell's code span."""
    lines = [line.strip().strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip().strip("`"): [cell.strip() for cell in cells[1:]] for cells in lines}


@pytest.mark.parametrize(
    ("heading", "struct"),
    [
        ("## `[server]`", settings.ServerSettings),
        ("## `[model.NAME]`", settings.ModelSettings),
        ("### `inputs`", settings.InputSettings),
        ("### `instances`", settings.InstanceSettings),
        ("### `process`", ProcessSettings),
    ],
)
def test_every_setting_stands_in_its_table_and_no_other(heading: str, struct: type[msgspec.Struct]) -> None:
    text = section((DOCS / "configuration.md").read_text(encoding="utf-8"), heading)
    own_table = text.split("\n### ")[0]
    assert set(rows(own_table)) == {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize(
    ("heading", "struct"),
    [
        ("## The file", ensemble_file.EnsembleSettings),
        ("### `[[member]]`", ensemble_file.MemberSettings),
        ("### `[boxes]`", ensemble_file.BoxesSettings),
    ],
)
def test_every_key_of_an_ensemble_stands_in_its_table(heading: str, struct: type[msgspec.Struct]) -> None:
    text = section((DOCS / "ensembles.md").read_text(encoding="utf-8"), heading).split("\n### ")[0]
    fields = {field.encode_name: field.default for field in msgspec.structs.fields(struct)}
    table = rows(text)
    assert set(table) == set(fields)
    for name, default in fields.items():
        if isinstance(default, str):
            assert table[name][0] == f'`"{default}"`'
        elif isinstance(default, (int, float)):
            assert table[name][0] == f"`{default}`"


@pytest.mark.parametrize(
    ("heading", "struct"),
    [("## `[server]`", settings.ServerSettings), ("## `[model.NAME]`", settings.ModelSettings)],
)
def test_defaults_in_the_tables_are_the_real_ones(heading: str, struct: type[msgspec.Struct]) -> None:
    table = rows(section((DOCS / "configuration.md").read_text(encoding="utf-8"), heading))
    for field in msgspec.structs.fields(struct):
        default = field.default
        if isinstance(default, bool):
            said = f"`{str(default).lower()}`"
        elif isinstance(default, (str, Address)):
            said = f'`"{default}"`'
        elif isinstance(default, (int, float)):
            said = f"`{default}`"
        else:
            continue  # None or a collection: the page says in words what that means
        assert table[field.encode_name][0] == said, field.encode_name


def error_classes(root: type[errors.PartitaError]) -> Iterator[type[errors.PartitaError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from error_classes(child)


def test_every_error_is_explained_under_its_code() -> None:
    table = rows((DOCS / "errors.md").read_text(encoding="utf-8"))
    known = {cls.code: f"`{cls.__name__}`" for cls in error_classes(errors.PartitaError)}
    assert {code: cells[0] for code, cells in table.items()} == known


def test_the_statuses_of_errors_are_those_that_http_gives() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    for code, cells in rows(section(page, "## A request")).items():
        assert int(cells[1]) == STATUS.get(code, 500), code


def test_the_statuses_of_errors_are_those_that_grpc_gives() -> None:
    pytest.importorskip("grpc")
    from partita.protocols.grpc.status import STATUS as GRPC_STATUS

    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    for code, cells in rows(section(page, "## A request")).items():
        assert cells[2] == (GRPC_STATUS[code].name if code in GRPC_STATUS else "INTERNAL"), code


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0].rstrip(".")


def test_every_module_has_its_line() -> None:
    page = (DOCS / "structures.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w/]+\.py)`", page, flags=re.MULTILINE))
    modules = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py"
    }
    missing = [f"| `{name}` | {first_line(SOURCE / name)} |" for name in sorted(modules - listed)]
    assert not missing, "\n".join(["docs/structures.md lacks these lines:", *missing])
    assert not listed - modules, "docs/structures.md has lines of modules that are gone"


def fenced(language: str) -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for block in re.findall(
            rf"^```{language}\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            yield page_id(path), block


@pytest.mark.parametrize(("page", "block"), list(fenced("python")))
def test_python_examples_are_python(page: str, block: str) -> None:
    ast.parse(block, page)


@pytest.mark.parametrize(("page", "block"), list(fenced("toml")))
def test_toml_examples_are_settings(page: str, block: str, tmp_path: Path) -> None:
    path = tmp_path / "partita.toml"
    path.write_text(block, encoding="utf-8")
    if "[[member]]" in block:
        read_table(ensemble_file.EnsembleSettings, read_toml(path), where="")
    elif "[[device]]" in block:
        read_table(device_file.DeviceFile, read_toml(path), where="")
    else:
        settings.load_settings(path, environ={})


@pytest.mark.parametrize(("page", "block"), list(fenced("console")))
def test_console_examples_start_with_a_prompt(page: str, block: str) -> None:
    assert block.startswith("$ ")


def commands() -> Iterator[str]:
    for _, block in fenced("console"):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            if line.startswith("$ partita "):
                yield line.removeprefix("$ partita ").split("#")[0].strip()


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_commands_in_examples_have_these_options(line: str) -> None:
    name, *arguments = shlex.split(line)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    command.make_context(name, arguments)  # parses, checks, and runs nothing


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
