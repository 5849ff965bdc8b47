from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.home import Home
from tests.support.claude_files import turns, write

Ran = tuple[int, str, str]
Tree = dict[str, tuple[int, bytes | str | None]]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a user with both clients, some history of one, and no Java, isolated from the real user."""
    folder = tmp_path / "user"
    (folder / ".codex").mkdir(parents=True)
    write(folder / ".claude/projects/-p/one.jsonl", turns("one", 3))
    write(folder / ".claude/projects/-p/one/subagents/agent-1.jsonl", turns("one", 1, first=7))
    write(folder / ".claude/projects/-p/two.jsonl", turns("two", 2))
    (folder / ".claude/settings.json").write_text('{\n  "model": "opus"\n}\n')
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HYP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "HYP_DEV_TELEMETRY", "OTEL_EXPORTER_OTLP_ENDPOINT", "HYP_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def hyp(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process; return exit code, stdout and stderr."""

    def run(*args: str) -> Ran:
        from hypaware.cli import entry

        capfd.readouterr()
        code = entry.run(args)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def tree(top: Path) -> Tree:
    """Return everything below a folder: modes, bytes of files and targets of links."""
    found: Tree = {}
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = Path(folder) / name
            about = path.lstat()
            content: bytes | str | None = None
            if stat.S_ISREG(about.st_mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(about.st_mode):
                content = str(path.readlink())
            found[str(path.relative_to(top))] = about.st_mode, content
    return found
