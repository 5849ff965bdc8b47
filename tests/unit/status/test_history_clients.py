"""Clients that are recorded from their history alone: they appear once they are there, and can be turned off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugin_distributions import install
from tests.support.status_home import StatusHome

CODE = """
from hypaware.clients.client import Client
from hypaware.clients.qwen.history import QwenHistory

class DiaryHistory(QwenHistory):
    name = "diary"

CLIENT = Client("diary", "A diary", backfill=DiaryHistory())
"""


@pytest.fixture(autouse=True)
def diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "diary-for-hyp", "[hypaware.clients]\ndiary = diary_client:CLIENT\n", "diary_client", CODE)
    monkeypatch.syspath_prepend(site)


def names(at: StatusHome) -> list[str]:
    return [each["client"] for each in at.snapshot().as_json()["clients"]]


def test_a_client_that_is_not_on_this_machine_is_not_shown(at: StatusHome) -> None:
    assert "diary" not in names(at.with_rows(3))


def test_a_client_with_history_is_shown_and_offered(at: StatusHome) -> None:
    (at.user / ".qwen" / "projects").mkdir(parents=True)

    assert "diary" in names(at.with_rows(3))
    found = [each for each in at.snapshot().diagnostics if each.kind == "client_not_chosen"]
    assert any("hyp config set clients.diary.enabled true" in each.repair for each in found)


def test_a_client_that_is_turned_off_is_shown_as_such(at: StatusHome) -> None:
    (at.user / ".qwen" / "projects").mkdir(parents=True)
    at.write_config("[clients.diary]\nenabled = false\n")

    assert "diary" in at.diagnostic("client_off").message
