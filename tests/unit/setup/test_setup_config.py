"""The config that a set-up writes: new ones whole, others with what their owner wrote kept."""

from __future__ import annotations

import os
import signal
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware import config
from hypaware.config import edit
from hypaware.errors import ConfigError, HypError
from hypaware.home import Home
from hypaware.setup import configuring, finding
from hypaware.setup.choices import Choices, Export
from hypaware.setup.configuring import Written
from hypaware.setup.finding import FoundClient
from tests.command import Hyp

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
OWN = """# mine, and I like it
version = 1

[clients]
claude.enabled = true
codex.enabled = true

[flush]
interval = "1m"   # often

[retention]
default_days = 30

[sinks.team]
kind = "forward"
url = "https://hyp.example"
token_file = "/tokens/team"
schedule = "*/5 * * * *"
"""


@pytest.fixture
def found(home: Home, user: Path) -> list[FoundClient]:
    return finding.clients(home, dict(os.environ), NOW)


def write(home: Home, found: list[FoundClient], **chosen: Any) -> Written:
    return configuring.write(home, Choices(**chosen), found, NOW)


def table(home: Home) -> dict[str, Any]:
    return tomllib.loads(home.config.read_text())


def own(home: Home, text: str = OWN) -> str:
    home.root.mkdir(mode=0o700)
    home.config.write_text(text)
    return text


def test_a_new_config_says_what_was_chosen(home: Home, found: list[FoundClient]) -> None:
    written = write(home, found, clients=("claude",), retention_days=90, export=Export("local-parquet"))
    assert table(home) == {
        "version": 1,
        "clients": {"claude": {"enabled": True}, "codex": {"enabled": False}},
        "retention": {"default_days": 90},
        "sinks": {
            "archive": {
                "kind": "blob",
                "destination": str(home.root.parent / "hypaware-parquet"),
                "encoder": "parquet",
            }
        },
    }
    assert (written.configured.clients, written.configured.sink, written.backup) == (("claude",), "archive", None)
    assert home.config.stat().st_mode & 0o777 == 0o600
    assert config.load(home) == written.configured.config


def test_without_a_word_every_installed_client_is_recorded_and_rows_stay_for_ever(
    home: Home, found: list[FoundClient]
) -> None:
    write(home, found)
    assert table(home) == {
        "version": 1,
        "clients": {"claude": {"enabled": True}, "codex": {"enabled": True}},
        "retention": {"default_days": 0},
    }


def test_a_config_that_is_there_is_kept_to_the_byte(home: Home, found: list[FoundClient]) -> None:
    before = own(home)
    for chosen in (
        {},
        {"clients": ("claude",)},
        {"retention_days": 30},
        {"export": Export("server", "https://hyp.example")},
        {"retention_days": 30, "force": True},
    ):
        assert not write(home, found, **chosen).configured.is_changed
    assert home.config.read_text() == before
    assert [path.name for path in home.root.iterdir()] == ["config.toml"]


def test_history_that_is_not_wanted_is_left_out_from_then_on(home: Home, found: list[FoundClient]) -> None:
    """Without it the daemon imports, and delivers, a minute later what the user said no to."""
    write(home, found, clients=("claude",), imports=False)
    assert table(home)["clients"]["claude"] == {"enabled": True, "history_from": "2026-11-15T12:00:00Z"}
    before = home.config.read_text()
    configuring.write(home, Choices(imports=False), found, NOW + timedelta(days=1))
    assert home.config.read_text() == before, "the first word counts, not that of each day"


def test_an_import_that_was_begun_goes_on_whatever_a_later_set_up_leaves_out(
    home: Home, found: list[FoundClient]
) -> None:
    """A bound would lose what was written since the last import."""
    own(home)
    begun = [replace(each, is_begun=each.name == "claude") for each in found]
    write(home, begun, imports=False)
    assert list(table(home)["clients"]["claude"]) == ["enabled"]
    assert list(table(home)["clients"]["codex"]) == ["enabled", "history_from"]


def test_what_is_added_leaves_comments_and_the_rest_as_they_were(home: Home, found: list[FoundClient]) -> None:
    own(home, OWN.replace("codex.enabled = true", "codex.enabled = false # not this one"))
    written = write(home, found, clients=("codex",), export=Export("local-parquet", "/rows"))
    text = home.config.read_text()
    assert text.startswith(OWN.replace("codex.enabled = true", "codex.enabled = true # not this one"))
    assert table(home)["sinks"]["archive"] == {"kind": "blob", "destination": "/rows", "encoder": "parquet"}
    assert (written.backup, written.configured.changes) == (None, ())


def test_a_client_that_the_config_leaves_out_stays_out_unless_it_is_named(home: Home, found: list[FoundClient]) -> None:
    own(home, "version = 1\n[clients.codex]\nenabled = false\n")
    assert write(home, found).configured.clients == ("claude",)
    assert table(home)["clients"] == {"codex": {"enabled": False}, "claude": {"enabled": True}}
    assert write(home, found, clients=("codex",)).configured.clients == ("codex",)
    assert table(home)["clients"] == {"codex": {"enabled": True}, "claude": {"enabled": True}}


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"retention_days": 7}, "retention.default_days would change from 30 to 7"),
        ({"export": Export("keep-local")}, "the sink team would go"),
        ({"export": Export("server", "https://other.example")}, "sinks.team.url is 'https://hyp.example'"),
        ({"export": Export("server", "https://hyp.example", "/t")}, "sinks.team.token_file is '/tokens/team'"),
    ],
)
def test_a_change_needs_a_word_and_leaves_a_copy(
    home: Home, found: list[FoundClient], chosen: dict[str, Any], says: str
) -> None:
    before = own(home)
    with pytest.raises(HypError, match="Nothing was done") as refused:
        write(home, found, **chosen)
    assert (refused.value.kind, refused.value.exit_code) == ("config_would_change", 1)
    assert says in refused.value.message
    assert home.config.read_text() == before
    written = write(home, found, **chosen, force=True)
    assert written.backup == home.root / "config.toml.bak-20261115T120000Z"
    assert written.backup.read_text() == before
    assert home.config.read_text().startswith("# mine, and I like it\n")
    assert not write(home, found, **chosen).configured.is_changed
    config.load(home)


def test_a_sink_that_points_elsewhere_keeps_what_else_it_says(home: Home, found: list[FoundClient]) -> None:
    own(home)
    write(home, found, export=Export("server", "https://other.example"), force=True)
    assert table(home)["sinks"]["team"] == {
        "kind": "forward",
        "url": "https://other.example",
        "token_file": "/tokens/team",
        "schedule": "*/5 * * * *",
    }


def test_two_changes_within_a_second_leave_two_copies(home: Home, found: list[FoundClient]) -> None:
    own(home)
    first = write(home, found, retention_days=7, force=True).backup
    second = write(home, found, retention_days=8, force=True).backup
    assert first is not None
    assert second is not None
    assert "default_days = 30" in first.read_text()
    assert "default_days = 7" in second.read_text()


def test_a_broken_config_is_told_and_with_a_word_made_anew(home: Home, found: list[FoundClient]) -> None:
    before = own(home, "version = 1\nretentoin = 3\n")
    with pytest.raises(ConfigError, match="line 2"):
        write(home, found)
    backup = write(home, found, force=True).backup
    assert backup is not None
    assert backup.read_text() == before
    assert config.load(home).clients["claude"].enabled


def test_an_answer_leaves_a_client_out_of_a_config_that_has_it(home: Home, found: list[FoundClient]) -> None:
    own(home)
    written = write(home, found, clients=("claude",), interactive=True, force=True)
    assert written.configured.changes == ("codex would no longer be recorded",)
    assert table(home)["clients"] == {"claude": {"enabled": True}, "codex": {"enabled": False}}


def test_a_linked_config_stays_a_link(home: Home, found: list[FoundClient], tmp_path: Path) -> None:
    own(home)
    real = tmp_path / "dotfiles.toml"
    home.config.rename(real)
    home.config.symlink_to(real)
    backup = write(home, found, retention_days=7, force=True).backup
    assert home.config.is_symlink()
    assert "default_days = 7" in real.read_text()
    assert backup is not None
    assert backup.parent == tmp_path


@pytest.mark.parametrize("point", ["setup.config.after-backup", "setup.config.after-write"])
def test_killed_beside_the_write_it_is_done_by_the_next(home: Home, user: Path, point: str) -> None:
    before = own(home)
    hyp = Hyp(home.root)
    flags = ("setup", "--retention-days", "7", "--force", "--no-daemon", "--no-backfill")
    assert hyp.run(*flags, HYP_CRASH_AT=point).code == -signal.SIGKILL
    # There is no Java here: that is said, and the config is written all the same.
    assert hyp.run(*flags).code == 3
    copies = [path.read_text() for path in home.root.glob("config.toml.bak-*")]
    assert set(copies) == {before}
    assert config.load(home).retention.default_days == 7
    assert not list(home.root.glob(".config.toml.*"))


def test_a_table_is_taken_out_whole_and_nothing_else(home: Home) -> None:
    text = (
        'version = 1\n[sinks.a]\nkind = "blob"\ndestination = "/a"\n[sinks.b]\nkind = "blob"\ndestination = "/b" # b\n'
    )
    left = edit.without(text, ("sinks", "a"), home.config)
    assert tomllib.loads(left)["sinks"] == {"b": {"kind": "blob", "destination": "/b"}}
    assert left.endswith('destination = "/b" # b\n')
