from __future__ import annotations

from pathlib import Path

import pytest

from hypaware.home import Home
from tests.support.followed_home import FollowedHome


@pytest.fixture
def at(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FollowedHome:
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return FollowedHome(home, folder)
