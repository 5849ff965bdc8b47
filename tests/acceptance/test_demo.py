"""`make demo` as a user and CI run it, including a failing verdict."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from demo import stage, verdict
from hypaware.home import cache_dir
from tests.support.processes import eventually

ROOT = Path(__file__).parents[2]
TOLD = [
    *("$ hyp setup --yes", "+ import  108 rows of 7 sessions", "7 sessions, 108 messages", "$ hyp backfill"),
    *("$ hyp query sql", "7 rows in", "$ python -m demo.client", "2 rows in", "$ hyp status", "$ hyp client detach"),
    *("$ hyp daemon stop", "hyp server run --listen", "$ hyp config set sinks.team"),
    *("$ HYP_CRASH_AT=export.ship.after-answer hyp export", "error: the engine died while running export"),
    *(
        "$ hyp export",
        "team: ok",
        "$ hyp export",
        "team: ok",
        "$ HYP_HOME=$SERVER hyp query sql",
        "$ hyp verify --deep",
    ),
    *("Verdict: it holds.", "Next steps:", "hyp setup"),
]
FIGURES = {
    "parts in the 7 transcripts": 108,
    "rows imported from them": 108,
    "rows in the lake, including live ones": 110,
    "rows on the server": 110,
    "duplicate rows in either lake": 0,
    "rows in only one of the lakes": 0,
    "rows with different content": 0,
}


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user with a history and settings that the demo must not touch."""
    for name in (".claude/settings.json", ".claude/projects/-p/mine.jsonl", ".codex/config.toml"):
        path = tmp_path / "user" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path / "user"


def demo(user: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with its temporary folder next to the user's home."""
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("CLAUDE_CONFIG_DIR", "CODEX_HOME")},
        "HOME": str(user),
        "HYP_HOME": str(user / ".hyp"),
        "HYP_CACHE": str(cache_dir()),
        "HYP_CRASH_AT": "lake.commit.after-commit",
        "TMPDIR": str(user.parent / "temporary"),
    }
    (user.parent / "temporary").mkdir()
    return subprocess.run(
        [sys.executable, "-m", "demo", *options],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def processes_in(folder: Path) -> list[int]:
    """Return the processes that refer to it in their command line or environment."""
    found = []
    for each in psutil.process_iter():
        try:
            known = [*each.cmdline(), *each.environ().values()]
        except (psutil.Error, OSError):
            continue
        if each.pid != os.getpid() and any(str(folder) in word for word in known):
            found.append(each.pid)
    return found


def is_told_in_order(text: str, parts: Sequence[str]) -> bool:
    return re.search(".*?".join(map(re.escape, parts)), text, re.DOTALL) is not None


@pytest.mark.spark
def test_the_demo_runs_every_step_and_leaves_nothing_behind(user: Path) -> None:
    before = tree(user)
    done = demo(user)
    assert done.returncode == 0, done.stdout[-3000:]
    assert is_told_in_order(done.stdout, TOLD), done.stdout
    found = {name: int(number) for name, number in re.findall(r"^   (.+?) {2,}(\d+)$", done.stdout, re.MULTILINE)}
    assert found.items() >= FIGURES.items()
    assert "\x1b" not in done.stdout, "it is read in a log, too"
    assert tree(user) == before
    assert list((user.parent / "temporary").iterdir()) == []
    eventually(lambda: not processes_in(user.parent))


def test_the_users_own_history_is_linked_and_nothing_else_is_reachable(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(user))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.setenv(name, str(user / (".claude" if "CLAUDE" in name else ".codex")))
    place = stage.Place(tmp_path / "demo/home", tmp_path / "demo/user")
    stage.create_history(place.user, "own")
    environment = place.environment()
    for name in ("HOME", "HYP_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        assert environment[name].startswith(str(tmp_path / "demo")), name
    assert (place.user / ".claude/projects").readlink() == user / ".claude/projects"
    assert not (place.user / ".claude/settings.json").exists()
    assert list((place.user / ".codex").iterdir()) == [], "there is no history of it"


def test_a_missing_history_is_an_error(user: Path) -> None:
    (user / ".claude/projects/-p/mine.jsonl").unlink()
    done = demo(user, "--history", "own")
    assert done.returncode == 1
    assert "no history of Claude Code or Codex on this machine" in done.stdout


def lake(home: Path, rows: list[dict[str, Any]]) -> list[verdict.Part]:
    """Return the verdict for a home whose lake holds these rows."""
    (home / "lake").mkdir(parents=True)
    place = home / "lake"
    with closing(
        SqlCatalog("hyp", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
    ) as catalog:
        catalog.create_namespace("hypaware")
        content = pa.Table.from_pylist(rows)
        catalog.create_table(verdict.TABLE, content.schema).append(content)
    return verdict.read_parts(home)


def row(part: int, **more: Any) -> dict[str, Any]:
    return {"part_id": f"p{part}", "session_id": "s", "content_text": "said", "_hyp_ingest_seq": part, **more}


@pytest.mark.parametrize(
    ("there", "holds"),
    [
        ([row(2, _hyp_ingest_seq=8), row(1, _hyp_ingest_seq=9)], True),
        ([row(1)], False),
        ([row(1), row(2), row(2)], False),
        ([row(1), row(2), row(3)], False),
        ([row(1), row(3)], False),
        ([row(1), row(2, content_text="said otherwise")], False),
    ],
    ids=["same", "lost", "doubled", "one-more", "another", "changed"],
)
def test_the_verdict_fails_if_the_lakes_differ(tmp_path: Path, there: list[dict[str, Any]], holds: bool) -> None:
    here = lake(tmp_path / "home", [row(1), row(2)])
    assert verdict.compare(here, lake(tmp_path / "server", there), {"s": 2}).holds is holds


def test_the_verdict_fails_if_a_part_is_missing_or_duplicated() -> None:
    parts = [verdict.Part(name, "s", b"") for name in "ab"]
    assert verdict.compare(parts, parts, {"s": 2}).holds
    assert not verdict.compare(parts, parts, {"s": 3}).holds
    assert not verdict.compare([*parts, parts[0]], [*parts, parts[0]], {}).holds
    assert not verdict.compare([], [], {}).holds


def test_the_verdict_counts_the_parts_of_the_sample_sessions_independently() -> None:
    found = verdict.count_parts(stage.SAMPLE.rglob("*.jsonl"))
    assert len(found) == 7
    assert sum(found.values()) == FIGURES["parts in the 7 transcripts"]
