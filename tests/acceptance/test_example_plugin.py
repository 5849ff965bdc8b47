"""Third-party clients: the example plugin imports its history, and broken ones fail alone, with a reason."""

from __future__ import annotations

import json
import os
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Hyp, Result
from tests.support.plugin_distributions import install

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
NOTES = [
    {"at": "2026-11-14T23:59:59Z", "who": "me", "text": "buy milk"},
    {"at": "2026-11-15T08:00:00Z", "who": "pad", "text": "noted"},
    {"at": "2026-11-15T08:00:01Z", "who": "me", "text": "buy milk"},
]
ROWS = """
    SELECT message_index, role, content_text, session_id, message_created_at,
           get_json_object(attributes, '$.gateway.source') AS via,
           get_json_object(attributes, '$.gateway.native_id') AS native_id
    FROM ai_gateway_messages WHERE client_name = 'scratchpad' ORDER BY message_index
"""

# Each violates its contract in one way, given by the first words of its name.
BROKEN = textwrap.dedent(
    """
    from pathlib import Path
    from hypaware.clients.client import Provenance
    from hypaware.clients.client import Source
    from hypaware.clients.client import Client
    from hypaware.clients.client import ImportItem


    FROM = Provenance("broken", "/nowhere", "1")
    DATASET, KIND = "ai_gateway_messages", "ai_gateway.projected_exchange"

    class Broken:
        summary = "nothing that could be imported"
        environment = ("SCRATCHPAD_HOME",)
        def __init__(self, name, yields, datasets=(DATASET,), find=None):
            self.name, self.yields, self.datasets, self.looked = name, yields, datasets, find
        def find(self, environment):
            if self.looked: raise self.looked
            yield from map(Source, Path(environment["SCRATCHPAD_HOME"]).glob("*.jsonl"))
        def first_time(self, head): return None
        def read(self, reading, environment):
            if isinstance(self.yields, Exception): raise self.yields
            yield self.yields

    NO_MATERIALIZER = Client("no_materializer", "", Broken("no_materializer", ImportItem(DATASET, "its.own", {}, FROM)))
    OTHER_DATASET = Client("other_dataset", "", Broken("other_dataset", ImportItem("elsewhere", KIND, {}, FROM)))
    NO_DATASET = Client("no_dataset", "", Broken("no_dataset", ImportItem("nowhere", KIND, {}, FROM), ("nowhere",)))
    NO_ITEM = Client("no_item", "", Broken("no_item", {"part_id": "a row, not an item"}))
    NO_EXCHANGE = Client("no_exchange", "", Broken("no_exchange", ImportItem(DATASET, KIND, {"messages": []}, FROM)))
    RAISES = Client("raises", "", Broken("raises", RuntimeError("out of luck")))
    LOST = Client("lost", "", Broken("lost", None, find=RuntimeError("no way there")))
"""
)
KINDS = {
    "no_materializer": "materializer_missing",
    "other_dataset": "dataset_mismatch",
    "no_dataset": "dataset_not_registered",
    "no_item": "invalid_yield",
    "no_exchange": "invalid_yield",
    "raises": "provider_error",
    "lost": "provider_error",
}


class Machine:
    """A machine with the example plugin and notes in its scratchpad."""

    def __init__(self, root: Path) -> None:
        self.site, self.notes = root / "site", root / "scratchpad"
        self.site.mkdir()
        self.notes.mkdir()
        declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        lines = [f"{name} = {value}" for name, value in declared["entry-points"]["hypaware.clients"].items()]
        install(self.site, declared["name"], "\n".join(["[hypaware.clients]", *lines]))
        self.variables = {
            "PYTHONPATH": os.pathsep.join(map(str, (self.site, EXAMPLE))),
            "SCRATCHPAD_HOME": str(self.notes),
            "CLAUDE_CONFIG_DIR": str(root / "no-claude"),
            "CODEX_HOME": str(root / "no-codex"),
        }

    def write(self, name: str, notes: list[dict[str, str]]) -> None:
        with open(self.notes / f"{name}.jsonl", "a") as file:
            file.writelines(json.dumps(note) + "\n" for note in notes)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def backfill(hyp: Hyp, machine: Machine, *options: str) -> Any:
    (found,) = (
        each
        for each in hyp.ok("backfill", *options, **machine.variables)["providers"]
        if each["provider"] == "scratchpad"
    )
    return found


def test_the_example_imports_its_notes_once_and_later_only_new_ones(hyp: Hyp, machine: Machine) -> None:
    machine.write("groceries", NOTES)
    would = backfill(hyp, machine, "--dry-run")
    assert not hyp.home.exists()

    found = backfill(hyp, machine)

    assert (found["plugin"], found["status"]) == ("hypaware-scratchpad", "ok")
    assert (found["items_seen"], found["sessions_seen"], found["rows_written"]) == (1, 1, 3)
    assert found == would
    rows = hyp.query(ROWS)
    assert [(row["role"], row["content_text"]) for row in rows] == [
        ("user", "buy milk"),
        ("assistant", "noted"),
        ("user", "buy milk"),
    ]
    assert {(row["session_id"], row["via"], row["native_id"]) for row in rows} == {
        ("groceries", "backfill", "groceries")
    }
    again = backfill(hyp, machine)
    assert (again["rows_written"], again["rows_skipped"], again["files_unchanged"]) == (0, 0, 1)
    machine.write("groceries", [{"at": "2026-11-15T09:00:00Z", "who": "me", "text": "buy milk"}])
    more = backfill(hyp, machine, "scratchpad")
    assert (more["rows_written"], more["rows_skipped"]) == (1, 0)
    assert [row["message_index"] for row in hyp.query(ROWS)] == [0, 1, 2, 3]


def test_the_example_respects_the_window_and_a_wider_one_imports_the_rest(hyp: Hyp, machine: Machine) -> None:
    machine.write("groceries", NOTES)

    assert backfill(hyp, machine, "--since", "2026-11-15", "--until", "2026-11-15T08:00")["rows_written"] == 1
    assert backfill(hyp, machine)["rows_written"] == 2
    written = [note["at"].replace("Z", ".000000Z") for note in NOTES]
    assert [row["message_created_at"] for row in hyp.query(ROWS)] == written


def test_a_disabled_client_is_imported_only_by_name(inline: Hyp, machine: Machine) -> None:
    machine.write("groceries", NOTES)
    for name in ("claude", "codex", "scratchpad"):
        assert inline.run("config", "set", f"clients.{name}.enabled", "false", **machine.variables).code == 0

    none = inline.run("backfill", "--json", **machine.variables)

    assert (none.code, none.json["providers"]) == (0, [])
    assert "enabled" in none.err
    assert backfill(inline, machine, "scratchpad", "--dry-run")["rows_written"] == 3


@pytest.mark.hazard(48)
def test_an_engine_without_the_plugin_reports_a_failure(hyp: Hyp, machine: Machine) -> None:
    machine.write("groceries", NOTES)
    hyp.ok("engine", "start")

    refused = hyp.run("backfill", "scratchpad", "--json", **machine.variables)

    assert refused.code == 1
    assert refused.json["error"]["repair"] == ["hyp engine stop"]
    hyp.run("engine", "stop")
    assert backfill(hyp, machine, "scratchpad")["rows_written"] == 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Run the example next to all broken plugins: a dry run, a run, and the resulting rows."""
    root = tmp_path_factory.mktemp("broken")
    machine = Machine(root)
    machine.write("groceries", NOTES)
    entries = "\n".join(["[hypaware.clients]", *(f"{name} = broken_clients:{name.upper()}" for name in KINDS)])
    install(machine.site, "broken-clients", entries, "broken_clients", BROKEN)
    hyp = Hyp(root / "home", inline=True)
    dry = hyp.run("backfill", "--dry-run", "--json", **machine.variables)
    assert not hyp.home.exists()
    return {
        "dry": dry,
        "real": hyp.run("backfill", "--json", **machine.variables),
        "shown": hyp.run("backfill", **machine.variables),
        "rows": hyp.run("query", "sql", ROWS, "--format", "json"),
    }


def entry(result: Result, provider: str) -> Any:
    return next(each for each in result.json["providers"] if each["provider"] == provider)


@pytest.mark.hazard(48)
@pytest.mark.parametrize("provider", KINDS)
@pytest.mark.parametrize("how", ["dry", "real"])
def test_a_provider_that_breaks_its_contract_fails_with_the_reason(
    runs: dict[str, Result], provider: str, how: str
) -> None:
    failed = entry(runs[how], provider)

    assert runs[how].code == 1
    assert (failed["status"], failed["error"]["kind"]) == ("failed", KINDS[provider])
    assert failed["error"]["message"]
    assert (failed["rows_written"], failed["plugin"]) == (0, "broken-clients")


@pytest.mark.hazard(48)
def test_other_providers_still_run(runs: dict[str, Result]) -> None:
    assert entry(runs["dry"], "scratchpad")["rows_written"] == 3
    assert entry(runs["real"], "scratchpad")["rows_written"] == 3
    assert entry(runs["real"], "scratchpad")["status"] == "ok"
    assert [row["content_text"] for row in runs["rows"].json] == ["buy milk", "noted", "buy milk"]
    assert runs["real"].json["error"]["kind"] == "providers_failed"


def test_failures_are_reported_next_to_the_table(runs: dict[str, Result]) -> None:
    shown = runs["shown"]

    assert shown.code == 1
    for provider, kind in KINDS.items():
        assert f"warning: {provider} failed ({kind}): " in shown.err
    assert "RuntimeError: out of luck" in shown.err
    assert "Traceback" not in shown.err
    assert any(line.startswith("scratchpad") for line in shown.out.splitlines())
