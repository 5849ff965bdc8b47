"""The config that a setup writes: a new one, or additions to an existing one."""

from __future__ import annotations

import os
import signal
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware import config as config_config
from hypaware.config import edit
from hypaware.errors import ConfigError, HypError
from hypaware.home import Home
from hypaware.setup import config as setup_config
from hypaware.setup import discovery
from hypaware.setup.config import MergedConfig
from hypaware.setup.discovery import FoundClient
from hypaware.setup.plan import ExportChoice, SetupChoices
from tests.support.command import Hyp

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
    return discovery.find_clients(home, dict(os.environ), NOW)


def write(home: Home, found: list[FoundClient], **chosen: Any) -> tuple[MergedConfig, Path | None]:
    return setup_config.write_config(home, SetupChoices(**chosen), found, NOW)


def table(home: Home) -> dict[str, Any]:
    return tomllib.loads(home.config.read_text())


def own(home: Home, text: str = OWN) -> str:
    home.root.mkdir(mode=0o700)
    home.config.write_text(text)
    return text


def test_a_new_config_contains_the_choices(home: Home, found: list[FoundClient]) -> None:
    merged, backup = write(home, found, clients=("claude",), retention_days=90, export=ExportChoice("local-parquet"))
    assert table(home) == {
        "version": 1,
        "clients": {"claude": {"enabled": True}, "codex": {"enabled": False}, "opencode": {"enabled": False}},
        "retention": {"default_days": 90},
        "sinks": {
            "archive": {
                "kind": "blob",
                "destination": str(home.root.parent / "hypaware-parquet"),
                "encoder": "parquet",
            }
        },
    }
    assert (merged.clients, merged.sink, backup) == (("claude",), "archive", None)
    assert home.config.stat().st_mode & 0o777 == 0o600
    assert config_config.load(home) == merged.config


def test_by_default_every_installed_client_is_recorded_and_rows_are_kept_forever(
    home: Home, found: list[FoundClient]
) -> None:
    write(home, found)
    assert table(home) == {
        "version": 1,
        "clients": {"claude": {"enabled": True}, "codex": {"enabled": True}},
        "retention": {"default_days": 0},
    }


def test_an_existing_config_is_kept_byte_for_byte(home: Home, found: list[FoundClient]) -> None:
    before = own(home)
    for chosen in (
        {},
        {"clients": ("claude",)},
        {"retention_days": 30},
        {"export": ExportChoice("server", "https://hyp.example")},
        {"retention_days": 30, "force": True},
    ):
        assert not write(home, found, **chosen)[0].is_changed
    assert home.config.read_text() == before
    assert [path.name for path in home.root.iterdir()] == ["config.toml"]


def test_declined_history_is_never_imported_later(home: Home, found: list[FoundClient]) -> None:
    """Without the bound, the daemon would import and deliver the declined history a minute later."""
    write(home, found, clients=("claude",), imports=False)
    assert table(home)["clients"]["claude"] == {"enabled": True, "history_from": "2026-11-15T12:00:00Z"}
    before = home.config.read_text()
    setup_config.write_config(home, SetupChoices(imports=False), found, NOW + timedelta(days=1))
    assert home.config.read_text() == before, "the first word counts, not that of each day"


def test_a_client_with_an_earlier_import_gets_no_history_bound(home: Home, found: list[FoundClient]) -> None:
    """A bound would lose lines written since the last import."""
    own(home)
    begun = [replace(each, was_imported=each.name == "claude") for each in found]
    write(home, begun, imports=False)
    assert list(table(home)["clients"]["claude"]) == ["enabled"]
    assert list(table(home)["clients"]["codex"]) == ["enabled", "history_from"]


def test_additions_keep_comments_and_all_other_settings(home: Home, found: list[FoundClient]) -> None:
    own(home, OWN.replace("codex.enabled = true", "codex.enabled = false # not this one"))
    merged, backup = write(home, found, clients=("codex",), export=ExportChoice("local-parquet", "/rows"))
    text = home.config.read_text()
    assert text.startswith(OWN.replace("codex.enabled = true", "codex.enabled = true # not this one"))
    assert table(home)["sinks"]["archive"] == {"kind": "blob", "destination": "/rows", "encoder": "parquet"}
    assert (backup, merged.changes) == (None, ())


def test_a_disabled_client_stays_disabled_unless_it_is_named(home: Home, found: list[FoundClient]) -> None:
    own(home, "version = 1\n[clients.codex]\nenabled = false\n")
    assert write(home, found)[0].clients == ("claude",)
    assert table(home)["clients"] == {"codex": {"enabled": False}, "claude": {"enabled": True}}
    assert write(home, found, clients=("codex",))[0].clients == ("codex",)
    assert table(home)["clients"] == {"codex": {"enabled": True}, "claude": {"enabled": True}}


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"retention_days": 7}, "retention.default_days would change from 30 to 7"),
        ({"export": ExportChoice("keep-local")}, "the sink team would be removed"),
        (
            {"export": ExportChoice("server", "https://other.example")},
            "sinks.team.url would change from 'https://hyp.example'",
        ),
        (
            {"export": ExportChoice("server", "https://hyp.example", "/t")},
            "sinks.team.token_file would change from '/tokens/team'",
        ),
    ],
)
def test_a_change_needs_force_and_leaves_a_backup(
    home: Home, found: list[FoundClient], chosen: dict[str, Any], says: str
) -> None:
    before = own(home)
    with pytest.raises(HypError, match="Nothing was done") as refused:
        write(home, found, **chosen)
    assert (refused.value.kind, refused.value.exit_code) == ("config_would_change", 1)
    assert says in refused.value.message
    assert home.config.read_text() == before
    _, backup = write(home, found, **chosen, force=True)
    assert backup == home.root / "config.toml.bak-20261115T120000Z"
    assert backup.read_text() == before
    assert home.config.read_text().startswith("# mine, and I like it\n")
    assert not write(home, found, **chosen)[0].is_changed
    config_config.load(home)


def test_a_sink_with_a_new_destination_keeps_its_other_options(home: Home, found: list[FoundClient]) -> None:
    own(home)
    write(home, found, export=ExportChoice("server", "https://other.example"), force=True)
    assert table(home)["sinks"]["team"] == {
        "kind": "forward",
        "url": "https://other.example",
        "token_file": "/tokens/team",
        "schedule": "*/5 * * * *",
    }


def test_two_changes_within_a_second_leave_two_backups(home: Home, found: list[FoundClient]) -> None:
    own(home)
    first = write(home, found, retention_days=7, force=True)[1]
    second = write(home, found, retention_days=8, force=True)[1]
    assert first is not None
    assert second is not None
    assert "default_days = 30" in first.read_text()
    assert "default_days = 7" in second.read_text()


def test_an_invalid_config_is_reported_and_replaced_with_force(home: Home, found: list[FoundClient]) -> None:
    before = own(home, "version = 1\nretentoin = 3\n")
    with pytest.raises(ConfigError, match="line 2"):
        write(home, found)
    backup = write(home, found, force=True)[1]
    assert backup is not None
    assert backup.read_text() == before
    assert config_config.load(home).clients["claude"].enabled


def test_deselecting_a_client_disables_it_in_an_existing_config(home: Home, found: list[FoundClient]) -> None:
    own(home)
    merged, _ = write(home, found, clients=("claude",), interactive=True, force=True)
    assert merged.changes == ("codex would no longer be recorded",)
    assert table(home)["clients"] == {"claude": {"enabled": True}, "codex": {"enabled": False}}


def test_a_linked_config_stays_a_link(home: Home, found: list[FoundClient], tmp_path: Path) -> None:
    own(home)
    real = tmp_path / "dotfiles.toml"
    home.config.rename(real)
    home.config.symlink_to(real)
    backup = write(home, found, retention_days=7, force=True)[1]
    assert home.config.is_symlink()
    assert "default_days = 7" in real.read_text()
    assert backup is not None
    assert backup.parent == tmp_path


@pytest.mark.parametrize("point", ["setup.config.after-backup", "setup.config.after-write"])
def test_a_setup_killed_during_the_write_is_completed_by_the_next(home: Home, user: Path, point: str) -> None:
    before = own(home)
    hyp = Hyp(home.root)
    flags = ("setup", "--retention-days", "7", "--force", "--no-daemon", "--no-backfill")
    assert hyp.run(*flags, HYP_CRASH_AT=point).code == -signal.SIGKILL
    # Java is missing: that is reported, and the config is still written.
    assert hyp.run(*flags).code == 3
    copies = [path.read_text() for path in home.root.glob("config.toml.bak-*")]
    assert set(copies) == {before}
    assert config_config.load(home).retention.default_days == 7
    assert not list(home.root.glob(".config.toml.*"))


def test_removing_a_table_removes_nothing_else(home: Home) -> None:
    text = (
        'version = 1\n[sinks.a]\nkind = "blob"\ndestination = "/a"\n[sinks.b]\nkind = "blob"\ndestination = "/b" # b\n'
    )
    left = edit.remove_key(text, ("sinks", "a"), home.config)
    assert tomllib.loads(left)["sinks"] == {"b": {"kind": "blob", "destination": "/b"}}
    assert left.endswith('destination = "/b" # b\n')
