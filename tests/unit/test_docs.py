"""The documentation says what the code does: nothing that a user can meet is missing, and nothing points nowhere."""

from __future__ import annotations

import os
import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import get_args

import click
import pytest

from hypaware import faults, telemetry
from hypaware.cli.main import hyp
from hypaware.model import datasets
from scripts import hazard_marks, reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMANDS = {" ".join(path): command for path, command in reference.walk(hyp)}
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HAZARDS = [
    row
    for line in (DOCS / "hazards.md").read_text(encoding="utf-8").splitlines()
    if (row := hazard_marks.Row.parse(line))
]
LANDED = [row.number for row in HAZARDS if row.landed]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    _, found, rest = text.partition(f"# `{heading}`\n")
    assert found, f"no heading for {heading}"
    return rest.partition("\n#")[0]


@pytest.fixture(scope="module")
def marks() -> dict[int, list[str]]:
    """Return the test files of each hazard. Found once, and only by the worker that asks: it reads every test."""
    return hazard_marks.collect(ROOT / "tests")


@pytest.mark.parametrize("path", reference.pages(), ids=lambda path: path.name)
def test_the_generated_parts_of_a_page_are_as_the_code_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == reference.render(path), "run: make docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_described_with_all_its_options(name: str) -> None:
    described = section(page("commands.md"), name)

    options = [param.opts for param in COMMANDS[name].params if isinstance(param, click.Option)]
    assert [names for names in options if f"| `{', '.join(names)}" not in described] == []
    assert isinstance(COMMANDS[name], click.Group) or f"\n$ {name}" in described


def test_every_setting_is_described() -> None:
    assert [key for key, _ in reference.settings() if f"| `{key}` |" not in page("configuration.md")] == []
    assert "retention.datasets.<dataset>" in page("configuration.md")
    assert "privacy.folders.<path>" in page("configuration.md")


def test_every_variable_of_the_environment_that_the_code_reads_is_described() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    read = {name for source in sources for name in re.findall(r'"((?:HYP|DEV)_[A-Z_]+)"', source)}

    assert "HYP_HOME" in read
    assert [name for name in read if f"| `{name}` |" not in page("configuration.md")] == []


@pytest.mark.parametrize("dataset", datasets.list_all(), ids=lambda dataset: dataset.name)
def test_every_column_of_a_dataset_is_described(dataset: datasets.Dataset) -> None:
    described = section(page("datasets.md"), dataset.name)

    assert [column.name for column in dataset.columns if f"| `{column.name}` |" not in described] == []
    assert all(column.about for column in dataset.columns)


def test_every_crash_point_is_listed_and_belongs_to_a_durable_step() -> None:
    points = [point.name for point in faults.list_crash_points()]
    steps = page("durability.md")

    assert [name for name in points if f"| `{name}` |" not in page("crash-points.md")] == []
    assert [name for name in points if f"`{name}`" not in steps and f"`{name.rpartition('.')[0]}.*`" not in steps] == []


def test_every_span_and_metric_is_listed() -> None:
    names = {name for kind in (telemetry.Counter, telemetry.Histogram, telemetry.Gauge) for name in get_args(kind)}
    spans = set()
    for path in (ROOT / "src").rglob("*.py"):
        spans |= set(re.findall(r'telemetry\.span\(\s*"([^"]+)"', path.read_text(encoding="utf-8")))

    assert spans
    assert [name for name in names | spans if f"| `{name}` |" not in page("telemetry.md")] == []


def test_every_hazard_is_listed_once() -> None:
    assert [row.number for row in HAZARDS] == list(hazard_marks.ALL)


@pytest.mark.parametrize("number", LANDED)
def test_every_hazard_of_a_part_that_is_built_has_a_test(number: int, marks: dict[int, list[str]]) -> None:
    assert marks.get(number), f"no test is marked with hazard({number})"


def test_nothing_is_due_in_a_part_that_is_built() -> None:
    due = {int(part) for part in re.findall(r"due: part (\d)", page("hazards.md"))}

    assert due.isdisjoint(hazard_marks.LANDED_PARTS)


def test_a_test_is_marked_with_hazards_that_exist(marks: dict[int, list[str]]) -> None:
    assert marks.keys() <= set(hazard_marks.ALL)


LINKS = [
    (path, target) for path in PAGES for target in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in target
]


@pytest.mark.parametrize(("path", "target"), LINKS, ids=lambda value: value.name if isinstance(value, Path) else value)
def test_every_link_leads_somewhere(path: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    there = Path(os.path.normpath(path.parent / file)) if file else path

    assert there.exists()
    assert there.is_relative_to(ROOT)
    assert not anchor or anchor in map(slug, re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE))


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_make_command_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        target
        for path in PAGES
        for target in re.findall(r"(?:`|^|: )make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert {"demo", "test"} <= named <= targets


def test_ci_runs_the_test_command_of_the_readme_and_nothing_else() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    run = [line for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines() if "make" in line]

    assert "\nmake test " in readme
    assert [line.partition(" 2>&1")[0] for line in run] == ["make test"]


@pytest.mark.parametrize("path", [*PAGES, ROOT / "Makefile"], ids=lambda path: path.name)
def test_every_hyp_command_that_a_page_names_exists(path: Path) -> None:
    known = COMMANDS.keys() | {"hyp"}
    for named in re.findall(
        r"(?:`|\$ |^|bin/|  )(hyp(?: [a-z][a-z-]+)+)", path.read_text(encoding="utf-8"), re.MULTILINE
    ):
        words = named.split()
        command = " ".join(words[:2])
        assert command in known, named
        group = COMMANDS[command]
        if isinstance(group, click.Group) and not group.params and len(words) > 2:
            assert " ".join(words[:3]) in known, named


def command_lines(path: Path) -> list[str]:
    """What a page shows in its blocks of code as typed by a user, without comments; lines that go on are joined."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    text = "\n".join(blocks).replace("\\\n", " ")
    shown = re.findall(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(hyp(?: .*)?)$", text, re.MULTILINE)
    return [line for line in shown if line.count('"') % 2 == 0]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_line_that_a_page_shows_is_well_formed(path: Path) -> None:
    """With all its options and arguments, as far as that can be told without running it."""
    for line in command_lines(path):
        words = list(takewhile(lambda word: word not in ("&&", "|", ">", "<"), shlex.split(line, comments=True)))[1:]
        command: click.Command = hyp
        while isinstance(command, click.Group) and words:
            found = command.get_command(click.Context(command), words[0])
            if found is None:
                break
            command, words = found, words[1:]
        if "--help" not in words:
            well_formed(command, words)


def well_formed(command: click.Command, words: list[str]) -> None:
    try:
        with command.make_context(str(command.name), words):
            pass
    except click.BadParameter as wrong:
        if not re.search("does not exist|No such file", wrong.message):  # a file of the reader's own
            raise


def test_no_page_and_no_lock_names_a_machine_or_a_package_index() -> None:
    foreign = re.compile(r"/roo[t]/|/wor[k]/|(?<!unit)/home/(?!dev)\w|-url \S+:|find-links")
    for path in [*PAGES, ROOT / "Makefile", ROOT / "requirements.lock", *(ROOT / "scripts").glob("*.*")]:
        assert foreign.search(path.read_text(encoding="utf-8")) is None, path
