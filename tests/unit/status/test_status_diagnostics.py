"""Diagnostics: every reason why something is not recorded, stored or delivered is reported with valid commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from hypaware.config.shared_lake import LAKE_NAME
from hypaware.engine import launcher
from hypaware.engine.jvm import java_install_command
from hypaware.gateway import attach_status, handover
from hypaware.home import Home, locks
from hypaware.lake import tombstones
from hypaware.lake.tombstones import Tombstone
from hypaware.privacy import folder_memory, ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.state import flushes, lake_lease, streams
from hypaware.status import diagnostics, home_health
from hypaware.status.diagnostics import call_with_timeout
from hypaware.status.processes import inspect_engine
from tests.support.delivery_home import DeliveryHome, key
from tests.support.foreign_rows import add_foreign_rows, mark_delete_files
from tests.support.light_home import append
from tests.support.ports import FreePort
from tests.support.postgres_server import PASSWORD, USER, PostgresServer
from tests.support.retention_cases import RetentionSite
from tests.support.rows import DATASET, rows
from tests.support.status_home import SETTINGS, StatusHome, answering

SOURCE = Path(home_health.__file__).parent
KINDS = re.compile(r'\b(?:error|warning|info|say)\(\s*"(\w+)"')


def test_an_installed_client_that_the_config_does_not_name_is_reported(at: StatusHome) -> None:
    at.with_rows(3).with_client()
    message = at.diagnostic("client_not_chosen")
    assert (message.severity, message.repair) == ("info", ("hyp config set clients.claude.enabled true",))
    assert at.snapshot().overall == "ok"


FOLLOWED = {"state": "following", "mode": "notifications", "polling_reason": None, "folders": ["/p"], "error": None}


def test_a_client_that_is_only_followed_is_healthy(at: StatusHome) -> None:
    at.with_engine().with_rows(3).with_client().write_config("[clients.claude]\nenabled = true\n")
    with at.daemon(follow={"error": None, "clients": {"claude": {**FOLLOWED, "last_recorded_at": at.now.isoformat()}}}):
        found = at.snapshot()
        assert (found.overall, {each.severity for each in found.diagnostics} - {"info"}) == ("ok", set())
        assert not [each for each in found.diagnostics if "claude" in each.message]
        (claude,) = [each for each in found.clients if each["client"] == "claude"]
        assert (claude["state"], claude["follow"]["state"]) == ("detached", "following")


@pytest.mark.parametrize(
    ("facts", "kind", "severity", "text"),
    [
        ({"state": "failing", "error": "the disk is full"}, "follow_failing", "warning", "the disk is full"),
        ({"state": "folder_missing"}, "follow_folder_missing", "info", "/p does not exist"),
        ({"polling_reason": "no more watches"}, "follow_polling", "info", "no more watches"),
    ],
)
def test_why_transcripts_are_not_followed_as_usual_is_reported(
    at: StatusHome, facts: dict[str, str], kind: str, severity: str, text: str
) -> None:
    at.with_client().write_config("[clients.claude]\nenabled = true\n")
    with at.daemon(follow={"error": None, "clients": {"claude": {**FOLLOWED, **facts}}}):
        found = at.diagnostic(kind)
        assert (found.severity, text in found.message) == (severity, True)


def test_a_daemon_that_cannot_follow_at_all_is_reported(at: StatusHome) -> None:
    at.with_client().write_config("[clients.claude]\nenabled = true\n")
    with at.daemon(follow={"error": "the state is damaged", "clients": {}}):
        assert "the state is damaged" in at.diagnostic("follow_failing").message


def test_enabled_client_that_is_not_installed_is_reported(at: StatusHome) -> None:
    at.write_config("[clients.codex]\nenabled = true\n")
    assert at.diagnostic("client_not_installed").severity == "info"


def test_client_disabled_in_the_config_is_reported(at: StatusHome) -> None:
    at.with_client().write_config("[clients.claude]\nenabled = false\n")
    assert "hyp config set clients.claude.enabled true" in at.diagnostic("client_off").repair
    at.attached(1)
    assert at.diagnostic("client_disabled").severity == "warning"


def test_settings_that_give_others_access_are_reported(at: StatusHome) -> None:
    at.write_config(
        '[gateway]\nlisten = "0.0.0.0:18521"\nallowed_hosts = ["192.0.2.7"]\n'
        '[engine]\nmaster = "spark://cluster.example:7077"\n'
        '[sinks.team]\nkind = "forward"\nurl = "http://collector.example"\n'
    )
    assert at.diagnostic("gateway_remote").severity == "info"
    unencrypted = at.diagnostic("sink_unencrypted")
    assert unencrypted.severity == "warning"
    assert unencrypted.repair == ("hyp config set sinks.team.url https://collector.example",)
    assert "engine.secret_file" in at.diagnostic("cluster_without_secret").repair[0]


def test_missing_daemon_means_down_if_it_is_needed(at: StatusHome) -> None:
    at.with_rows(3)
    assert at.snapshot().overall == "ok"
    at.write_config("[clients.claude]\nenabled = true\n")
    message = at.diagnostic("daemon_down")
    assert (message.severity, message.repair, at.snapshot().overall) == ("error", ("hyp daemon start",), "down")
    with at.daemon():
        assert "daemon_down" not in at.kinds()
        assert at.snapshot().daemon["state"] == "running"


def test_empty_home_in_which_nothing_runs_is_not_healthy(at: StatusHome) -> None:
    at.made()
    message = at.diagnostic("nothing_recorded")
    assert (message.severity, message.repair, at.snapshot().overall) == ("warning", ("hyp setup",), "degraded")
    with at.daemon():
        assert "nothing_recorded" not in at.kinds()
    append(at.home, rows(1))
    assert "nothing_recorded" not in at.kinds()


def test_status_file_of_a_killed_daemon_is_ignored(at: StatusHome) -> None:
    at.made().write_config("[clients.claude]\nenabled = true\n")
    (at.home.run / "daemon.json").write_text(json.dumps({"pid": 1, "gateway": {"state": "listening"}}))
    assert at.snapshot().daemon == {"state": "stopped"}


def test_attached_client_without_a_reachable_gateway_is_an_error(at: StatusHome) -> None:
    at.made().attached(1)
    message = at.diagnostic("client_unreachable")
    assert (message.severity, message.repair) == ("error", ("hyp daemon start", "hyp client detach claude"))


def test_attached_client_served_by_the_fallback_is_reported(at: StatusHome) -> None:
    at.made()
    with answering(handover.describe_health(at.home, "fallback")) as port:
        at.attached(port)
        at.write_config('[gateway]\nlisten = "127.0.0.1:9"\n')
        moved = at.diagnostic("client_unrecorded")
        assert moved.repair == ("hyp client attach claude",)
        assert f"it calls http://127.0.0.1:{port}/claude, but gateway.listen is 127.0.0.1:9;" in moved.message
        at.write_config(f'[gateway]\nlisten = "127.0.0.1:{port}"\n')
        assert at.diagnostic("client_unrecorded").repair == ("hyp daemon start",)
        assert at.snapshot().sources[0]["answered_by"] == "fallback"


def test_a_daemon_that_does_not_end_is_reported(at: StatusHome) -> None:
    at.made()
    with at.daemon(stopping_since=(at.now - timedelta(minutes=5)).isoformat()):
        message = at.diagnostic("daemon_stopping")
    assert (message.severity, message.repair) == ("warning", ("hyp daemon stop --force",))
    assert "asked to stop 5 minutes ago" in message.message


def test_an_address_that_stays_open_after_detach_is_reported(at: StatusHome) -> None:
    at.made()
    assert "address_open" not in at.kinds()
    lock = locks.try_lock(handover.fallback_lock_path(at.home))
    assert lock is not None
    message = at.diagnostic("address_open")
    assert (message.severity, message.repair) == ("info", (f"kill {os.getpid()}",))
    at.attached(1)
    assert "address_open" not in at.kinds()
    locks.unlock(lock)


def test_attached_client_without_requests_is_reported_as_info(at: StatusHome) -> None:
    at.made()
    with answering(handover.describe_health(at.home, "gateway")) as port, at.daemon():
        at.write_config(f'[gateway]\nlisten = "127.0.0.1:{port}"\n').attached(port)
        assert at.diagnostic("client_unseen").severity == "info"
        assert at.snapshot().overall == "ok"
        seen = {"clients": {"claude": {"last_seen_at": "2999-01-01T00:00:00Z", "exchanges": 3}}}
        attach_status.activity_path(at.home).write_text(json.dumps(seen))
        found = at.snapshot()
        assert found.clients[0]["state"] == "recording"
        assert found.diagnostics == ()


def test_client_settings_that_lost_the_attachment_are_reported(at: StatusHome) -> None:
    at.made().attached(1)
    assert SETTINGS is not None
    SETTINGS.path(at.environment).write_text("{}\n")
    assert at.diagnostic("client_changed").repair == ("hyp client attach claude",)


def test_unreadable_client_settings_are_reported(at: StatusHome) -> None:
    at.made().attached(1)
    assert SETTINGS is not None
    SETTINGS.path(at.environment).write_text("{ this is no JSON")
    message = at.diagnostic("client_unreadable")
    assert (message.severity, message.repair) == ("warning", ("hyp client attach claude",))
    assert str(SETTINGS.path(at.environment)) in message.message
    assert "Nothing was written" not in message.message


def test_foreign_program_at_the_gateway_port_is_reported(at: StatusHome) -> None:
    at.made()
    with answering({"server": "of somebody else"}) as port:
        at.write_config(f'[gateway]\nlisten = "127.0.0.1:{port}"\n').attached(port)
        choose_another, then = at.diagnostic("port_taken").repair
        assert (choose_another.rsplit(" ", 1)[0], then) == ("hyp config set gateway.listen", "hyp client attach")
        with at.daemon(gateway={"listen": f"127.0.0.1:{port}", "state": "down", "error": "address in use"}):
            assert "port_taken" in at.kinds()


def test_silent_program_at_the_gateway_port_does_not_delay_the_status(
    at: StatusHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        at.made().write_config(f'[gateway]\nlisten = "127.0.0.1:{port}"\n').attached(port)
        assert {"port_taken", "client_unreadable"} <= at.kinds()


def test_gateway_that_does_not_listen_is_reported_with_its_reason(at: StatusHome) -> None:
    at.made()
    with at.daemon(gateway={"listen": "127.0.0.1:1", "state": "down", "error": "permission denied"}):
        assert "permission denied" in at.diagnostic("gateway_down").message


def test_traffic_counts_are_reported(at: StatusHome) -> None:
    at.made()
    counts = {"dropped": 2, "ignored": 3, "rejected_rows": 4, "unknown": {"/v1/odd": 5}, "exchanges": 20}
    with at.daemon(gateway={"listen": "127.0.0.1:1", "state": "off", **counts}):
        assert at.kinds() == {"records_dropped", "dialect_unknown", "live_rows_refused", "exchanges_ignored"}
        assert "/v1/odd" in at.diagnostic("dialect_unknown").message
        assert at.snapshot().sources[0]["dropped"] == 2
    with at.daemon(gateway={"listen": "127.0.0.1:1", "state": "off", "unreachable": 30}):
        assert at.kinds() == {"upstream_down"}
        assert "30 exchanges" in at.diagnostic("upstream_down").message
    unsaid = {"without_row": {"web_search_call": 2, "hologram": 1}}
    with at.daemon(gateway={"listen": "127.0.0.1:1", "state": "off", **unsaid}):
        assert "3 items" in at.diagnostic("live_items_without_row").message
        assert "(web_search_call, hologram)" in at.diagnostic("live_items_without_row").message
        assert at.snapshot().sources[0]["without_row"] == unsaid["without_row"]
        assert at.snapshot().overall == "ok", "an import creates no row for them either"
    with at.daemon(gateway="what is this", flush=["?"], maintain=3):
        assert at.snapshot().overall == "ok"


def test_failed_and_waiting_daemon_tasks_are_reported(at: StatusHome) -> None:
    at.made()
    then = (at.now - timedelta(hours=3)).isoformat()
    work = {
        "flush": {"last_flush": then, "last_status": "failed"},
        "maintain": {
            "waits": "maintenance waits until the machine is plugged in",
            "last_run": then,
            "last_status": "partial",
        },
        "catch_up": {"last_run": then, "last_status": "failed"},
        "page": {"state": "down", "listen": "127.0.0.1:8080", "error": "Address already in use"},
    }
    with at.daemon(version="0.0.1", **work):
        found = {"flush_failing", "maintenance_failing", "maintenance_waits", "catch_up_failing", "daemon_outdated"}
        assert at.kinds() == found | {"page_down"}
        assert "127.0.0.1:8080: Address already in use" in at.diagnostic("page_down").message
        assert "3 hours ago" in at.diagnostic("flush_failing").message


def test_a_receiver_of_telemetry_that_is_down_rejects_or_ignores_is_reported(at: StatusHome) -> None:
    at.made().write_config('[otlp]\nlisten = "127.0.0.1:4318"\n')
    receiver = {"state": "down", "listen": "127.0.0.1:4318", "error": "Address already in use"}
    with at.daemon(otlp=receiver):
        assert at.diagnostic("otlp_down").repair[0].startswith("hyp config set otlp.listen 127.0.0.1:")
    working = {"state": "listening", "rejected": 2, "ignored": 1, "last_error": "/v1/logs: too long"}
    with at.daemon(otlp={**receiver, **working}):
        assert {"telemetry_rejected", "telemetry_ignored"} <= at.kinds()
        assert "2 records were rejected" in at.diagnostic("telemetry_rejected").message
        assert "/v1/logs: too long" in at.diagnostic("telemetry_rejected").message
        assert "1 telemetry record was not recorded" in at.diagnostic("telemetry_ignored").message


def test_excluded_sessions_and_folders_are_reported(at: StatusHome) -> None:
    at.made().write_config('[privacy.folders]\n"~/secret" = "ignore"\n')
    ignored_sessions.ignore_session(at.home, "session-1")
    assert "1 session and 1 folder" in at.diagnostic("left_out").message
    clone = at.home.root.parent / "clone"
    clone.mkdir()
    (clone / ".hypignore").touch()
    PrivacyPolicy(at.home, remember=True).class_of(str(clone), None)
    assert "deleted" not in at.diagnostic("left_out").message
    shutil.rmtree(clone)
    assert "1 session, 1 folder and 1 deleted folder" in at.diagnostic("left_out").message
    for path in (ignored_sessions.ignored_sessions_path(at.home), folder_memory.folder_memory_path(at.home)):
        path.write_text("no JSON")
        unreadable = [each for each in at.snapshot().diagnostics if each.kind == "privacy_unreadable"]
        assert path.name in unreadable[-1].message


def test_invalid_config_is_an_error_with_its_line(at: StatusHome) -> None:
    at.made().write_config("[flush]\nintervall = 3\n")
    assert "line 3" in at.diagnostic("config_invalid").message
    assert at.snapshot().config["valid"] is False


def test_overdue_rows_are_reported(at: StatusHome) -> None:
    at.made()
    append(at.home, rows(4, start=10))
    assert "spool_waiting" not in at.kinds()
    message = at.diagnostic("spool_waiting", at.now + timedelta(days=2))
    assert ("4 rows" in message.message, message.repair) == (True, ("hyp flush",))


def test_failed_and_interrupted_flushes_are_reported(at: StatusHome) -> None:
    at.made()
    append(at.home, rows(2, start=10))
    with at.change() as connection:
        flush = flushes.reserve_range(connection, DATASET, 10)
    assert at.diagnostic("flush_unfinished").severity == "info"
    assert at.diagnostic("flush_unfinished", at.now + timedelta(days=1)).severity == "warning"
    with at.change() as connection:
        flushes.discard_flush(connection, flush)
        connection.execute(
            "INSERT INTO segments (dataset, name, row_count, status, attempts, updated_at)"
            f" VALUES ('{DATASET}', 'x', 2, 'waiting', 3, 'now')"
        )
    assert "3 attempts" in at.diagnostic("segments_failing").message


def test_rejects_are_reported_with_their_file(at: StatusHome) -> None:
    at.made()
    refused = at.home.spool / DATASET / "rejected" / "flush-1.jsonl"
    refused.parent.mkdir(parents=True)
    refused.write_text('{"reason": "odd"}\n{"reason": "odd"}\n')
    message = at.diagnostic("rows_refused")
    assert ("2 rows" in message.message, message.repair) == (True, (f"head {refused}",))
    assert at.diagnostic("rows_refused", at.now + timedelta(days=30)).severity == "info"
    assert at.snapshot().spool["rejected_rows"] == 2


def test_table_with_a_missing_or_short_file_is_damaged(at: StatusHome) -> None:
    at.with_rows(3).with_rows(3, 10)
    old, new = sorted(at.home.warehouse.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    held = old.read_bytes()
    old.unlink()
    assert "is missing" in at.diagnostic("lake_damaged").message
    old.write_bytes(held[:-1])
    assert at.diagnostic("lake_damaged").repair == (f"hyp maintain {DATASET} --rebuild",)
    old.write_bytes(held)
    new.write_bytes(b"\0" * new.stat().st_size)
    assert "footer" in at.diagnostic("lake_damaged").message


def test_rolled_back_lake_is_reported(at: StatusHome) -> None:
    at.with_rows(3)
    with at.change() as connection:
        flushes.raise_high_water(connection, DATASET, {"claude": 900})
    assert at.diagnostic("lake_rolled_back").repair == ("hyp verify --accept-rollback",)


def test_clock_set_back_is_reported(at: StatusHome) -> None:
    at.with_rows(3)
    assert at.diagnostic("clock_went_back", at.now - timedelta(hours=2)).severity == "warning"
    assert "clock_went_back" not in at.kinds(at.now - timedelta(seconds=5))


@pytest.mark.hazard(100)
def test_rows_without_a_sequence_are_reported(at: StatusHome) -> None:
    at.with_rows(3)
    assert "rows_without_sequence" not in at.kinds()
    add_foreign_rows(at.home, 2)
    found = at.diagnostic("rows_without_sequence")
    assert "2 rows of ai_gateway_messages" in found.message
    assert found.repair == ("hyp verify --repair",)


@pytest.mark.hazard(99)
def test_delete_files_of_another_program_are_reported(at: StatusHome) -> None:
    at.with_rows(3)
    at.with_rows(3, start=3)
    mark_delete_files(at.home)
    assert at.diagnostic("delete_files").repair == (f"hyp maintain {DATASET} --rebuild",)


def test_unfinished_and_finished_purges_are_reported(at: StatusHome) -> None:
    at.with_rows(3)
    stone = Tombstone("session", "session-1", "hyp purge --session session-1 --yes")
    ids = tombstones.create_tombstones(at.home, [stone], "2026-11-15T00:00:00Z")
    assert at.diagnostic("purge_unfinished").repair == ("hyp purge --session session-1 --yes",)
    tombstones.finish_purges(at.home, ids, 3, "2026-11-15T00:00:00Z")
    assert at.kinds() == {"purged"}
    at.home.tombstones.write_bytes(b"no database" * 100)
    assert at.diagnostic("tombstones_unusable").severity == "error"


def test_unreadable_key_index_is_reported(at: StatusHome) -> None:
    at.with_rows(3)
    at.home.keys.write_bytes(b"no database" * 100)
    assert at.diagnostic("key_index_unreadable").repair == ("hyp verify --repair",)


@pytest.mark.hazard(70)
def test_moved_home_is_reported_and_not_changed(at: StatusHome) -> None:
    at.with_rows(3)
    elsewhere = at.home.root.with_name("elsewhere")
    at.home.root.rename(elsewhere)
    there = StatusHome(Home(elsewhere))
    assert str(at.home.root) in there.diagnostic("home_moved").message
    assert there.snapshot().home["whereabouts"] == "moved"


@pytest.mark.hazard(69)
def test_copied_home_is_reported_and_does_not_count_the_originals_files(at: StatusHome) -> None:
    at.with_rows(3)
    copied = at.home.root.with_name("copied")
    shutil.copytree(at.home.root, copied)
    there = StatusHome(Home(copied))
    found = there.snapshot()
    assert "home_copied" in {each.kind for each in found.diagnostics}
    assert sum(each["rows"] for each in found.lake) == 0
    for path in (there.home.state, there.home.mirror):
        path.unlink()
    assert {"lake_elsewhere", "state_lost"} <= there.kinds()


def test_backup_is_not_a_home(at: StatusHome) -> None:
    at.with_rows(3)
    at.home.backup_note.write_text("{}")
    assert at.diagnostic("home_is_backup").severity == "error"
    assert at.snapshot().overall == "down"


def test_file_in_place_of_a_home_is_reported(at: StatusHome) -> None:
    at.home.root.write_text("no folder")
    assert at.kinds() == {"home_no_folder"}, "consequences are not reported separately"


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda home: home.state.write_bytes(b"no database" * 500), "state_unreadable"),
        (lambda home: home.state.unlink(), "state_lost"),
        (lambda home: home.state.with_name("state.db.suspect").touch(), "state_suspect"),
        (lambda home: home.mirror.write_text("{"), "mirror_unreadable"),
        (lambda home: home.gateway.write_text("gw-other"), "gateway_id_differs"),
        (lambda home: _future(home), "state_too_new"),
        (lambda home: home.catalog.write_bytes(b"no database" * 500), "unreadable"),
    ],
)
def test_damaged_state_is_reported(at: StatusHome, damage: Callable[[Home], object], kind: str) -> None:
    at.with_rows(3)
    damage(at.home)
    assert at.diagnostic(kind).repair


def _future(home: Home) -> None:
    with closing(sqlite3.connect(home.state)) as db:
        db.execute("INSERT INTO migrations VALUES ('9999_later', 'then')")
        db.commit()


def test_held_failing_lagging_and_rejecting_sinks_are_reported(at: StatusHome) -> None:
    deliveries = DeliveryHome(at.home)
    at.with_rows(20)
    deliveries.declare(held="/nowhere/a", failing="/nowhere/b", behind="/nowhere/c", fine="/nowhere/d")
    for sink, watermark in (("held", 5), ("failing", 5), ("behind", 5), ("fine", 20)):
        deliveries.delivered(key(sink), watermark)
    with at.change() as connection:
        streams.hold_stream(connection, key("held"), streams.HELD_OUTCOME_UNKNOWN, "nobody knows what arrived")
        streams.record_failure(connection, key("failing"), "the disk is full", None, 1)
    deliveries.buried(key("fine"), "letter", 3)
    with at.daemon():
        later = at.now + timedelta(days=1)
        assert at.diagnostic("sink_held", later).repair == ("hyp export adopt held", "hyp export resend held")
        assert "the disk is full" in at.diagnostic("sink_failing", later).message
        assert "15 rows" in at.diagnostic("sink_behind", later).message
        assert "sink_behind" not in at.kinds()
        assert at.diagnostic("dead_letters").repair == ("hyp export dead-letters list",)
        assert {sink["sink"]: sink["status"] for sink in at.snapshot().sinks} == {
            "held": "held", "failing": "failing", "behind": "behind", "fine": "delivered"
        }  # fmt: skip


def test_removed_and_unusable_sinks_are_reported(at: StatusHome) -> None:
    deliveries = DeliveryHome(at.home)
    at.with_rows(20)
    deliveries.declare(archive="/nowhere/a")
    deliveries.delivered(key("archive"), 5)
    deliveries.planned(key("archive"), 12)
    at.write_config("")
    assert at.diagnostic("sink_removed").severity == "info"
    at.write_config('[sinks.archive]\nkind = "carrier-pigeon"\n')
    assert {"sink_unusable", "config_invalid"} & at.kinds()


def test_held_and_dropped_rows_of_retention_are_reported(at: StatusHome) -> None:
    site = RetentionSite(at.home)
    site.commit(0, 40)
    sink = f'[sinks.slow]\nkind = "blob"\ndestination = "{at.user}/slow"\n'
    at.write_config(f"[retention]\ndefault_days = 30\n{sink}")
    assert at.diagnostic("retention_holds").repair == ("hyp export slow",)
    with at.change() as connection:
        connection.execute(
            "INSERT INTO retention_drops (dataset, source, day, at, through, row_count, sinks, landed)"
            f" VALUES ('{DATASET}', 'claude', '2026-01-01', '{at.now.isoformat()}', 1, 7, '[\"slow\"]', 1)"
        )
    assert "7 rows" in at.diagnostic("dropped_undelivered").message
    at.write_config(f"[retention]\ndefault_days = 30\nmax_hold_days = 1\n{sink}")
    assert "will be dropped" in at.diagnostic("retention_warning").message


@pytest.mark.parametrize(
    ("free", "grows", "kind"),
    [(1 << 20, 0, "disk_full"), (1 << 30, 0, "disk_tight"), (9 << 30, 1 << 30, "disk_filling")],
)
def test_filling_disk_is_reported_before_it_is_full(
    at: StatusHome, monkeypatch: pytest.MonkeyPatch, free: int, grows: int, kind: str
) -> None:
    """Replace the disk usage that the system reports."""
    at.with_rows(3)
    usage = shutil.disk_usage(at.home.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=free))
    monkeypatch.setattr(home_health, "_daily_growth", lambda _view, _lake: grows)
    assert at.kinds() == {kind}


def test_engine_that_is_not_installed_or_does_not_answer_is_reported(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = StatusHome(home).made()
    assert bare.diagnostic("engine_not_installed").repair == ("hyp engine install",)
    with launcher.listen_on_socket(bare.home):
        monkeypatch.setattr(diagnostics, "TIMEOUT_SECONDS", 0.5)
        assert bare.diagnostic("engine_not_answering").repair == ("hyp engine stop",)
    launcher.remove_socket(bare.home)


_SHARED_LAKE = """
[lake]
catalog = {{ type = "jdbc", uri = "{uri}", user = "{user}", password_env = "STATUS_TEST_PASSWORD" }}
state = {{ uri = "{uri}", user = "{user}", password_env = "STATUS_TEST_PASSWORD" }}
warehouse = "s3://bucket/lake"
"""


def test_a_database_of_a_shared_lake_that_does_not_answer_is_reported(
    at: StatusHome, free_port: FreePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS_TEST_PASSWORD", PASSWORD)
    at.write_config(_SHARED_LAKE.format(uri=f"postgresql://127.0.0.1:{free_port()}/postgres", user=USER))
    (found,) = inspect_engine(at.home, at.cache, at.environment).diagnostics
    assert (found.kind, found.severity) == ("lake_unavailable", "warning")
    assert "who has the shared lake is unknown" in found.message


def test_another_machine_that_has_the_shared_lake_is_reported(
    at: StatusHome, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS_TEST_PASSWORD", PASSWORD)
    postgres.execute("CREATE DATABASE status_lake")
    address = f"127.0.0.1:{postgres.port}/status_lake"
    at.write_config(_SHARED_LAKE.format(uri=f"postgresql://{address}", user=USER))
    assert inspect_engine(at.home, at.cache, at.environment).diagnostics == (), "no engine has used the lake yet"
    with closing(psycopg.connect(f"postgresql://{address}", user=USER, password=PASSWORD, autocommit=True)) as other:

        def run(sql: str) -> list[tuple[Any, ...]]:
            cursor = other.execute(sql)
            return cursor.fetchall() if cursor.description else []

        SqlCatalog("hyp", uri=postgres.whole_uri_of("status_lake"), warehouse="s3://bucket/lake")  # creates its tables
        lake_lease.install_fence(run)
        assert lake_lease.try_acquire(run, LAKE_NAME, "elsewhere-7", 3600.0)
        status = inspect_engine(at.home, at.cache, at.environment)
        (found,) = status.diagnostics
        assert (found.kind, found.severity) == ("lake_in_use", "info")
        assert "process 7 of elsewhere" in found.message
        assert status.facts["lake_holder"]["owner"] == "elsewhere-7"


def test_missing_java_is_reported(at: StatusHome) -> None:
    """With jars but without Java nothing can be committed, so the status must not be ok."""
    at.with_rows(3)
    assert at.snapshot().overall == "ok"
    (at.programs / "java").unlink()
    assert at.diagnostic("java_missing").repair == (java_install_command(),)
    assert (at.snapshot().overall, at.snapshot().engine["installed"]) == ("degraded", False)


def test_diagnostics_are_sorted_by_severity(at: StatusHome) -> None:
    at.made().with_client().write_config("[clients.claude]\nenabled = true\n")
    ignored_sessions.ignore_session(at.home, "session-1")
    order = [each.severity for each in at.snapshot().diagnostics]
    assert order == sorted(order, key=("error", "warning", "info").index)
    assert order[0] == "error"


def test_call_that_hangs_times_out() -> None:
    with pytest.raises(TimeoutError), socket.create_server(("127.0.0.1", 0)) as silent:
        call_with_timeout(silent.accept, 0.01)
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(lambda: 1 // 0, 10)


def _of_code() -> set[str]:
    return {kind for path in SOURCE.glob("*.py") for kind in KINDS.findall(path.read_text(encoding="utf-8"))}


def test_every_diagnostic_kind_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "status.md").read_text(encoding="utf-8")
    assert {kind for kind in _of_code() if f"`{kind}`" not in page} == set()


def test_every_diagnostic_kind_has_a_test() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert {kind for kind in _of_code() if f'"{kind}"' not in text} - {"not_set_up"} == set()
