"""The checks of `hyp doctor`: each finds its problem and names the repair."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from hypaware.engine import jars
from hypaware.gateway import handover
from hypaware.home import Home
from hypaware.state.home_opener import open_home
from hypaware.status import doctor, doctor_home
from hypaware.status.diagnostics import CheckResult
from hypaware.status.doctor import CheckFunction
from tests.support.ports import FreePort
from tests.support.status_home import StatusHome, answering, everything_under


def checked(at: StatusHome, look: CheckFunction) -> CheckResult:
    """Return the only result of a check."""
    (found,) = every(at, look)
    return found


def every(at: StatusHome, look: CheckFunction) -> list[CheckResult]:
    return list(look(doctor.read_input(at.home, at.environment, at.now, at.cache)))


def test_doctor_checks_everything_and_changes_nothing(at: StatusHome) -> None:
    at.with_rows(3).with_client()
    before = everything_under(at.home.root)
    progress: list[tuple[str, float, float]] = []
    inputs = doctor.read_input(at.home, at.environment, at.now, at.cache)
    found = list(doctor.run_checks(inputs, lambda *step: progress.append(step)))
    assert everything_under(at.home.root) == before
    assert len(progress) == len(doctor.CHECKS)
    names = {each.name for each in found}
    assert {name for name, _ in doctor.CHECKS} - {"secrets", "tombstones", "clients", "history", "sinks"} <= names
    assert {"client:claude", "client:codex"} <= names
    assert all(each.detail and isinstance(each.repair, tuple) for each in found)


def test_missing_home_is_not_created(at: StatusHome) -> None:
    every_one = list(doctor.run_checks(doctor.read_input(at.home, at.environment, at.now, at.cache), lambda *_: None))
    assert {each.name for each in every_one if each.status == "failed"} <= {"java", "jars", "gateway"}
    assert not at.home.root.exists()


def test_java_is_found_through_the_environment(home: Home) -> None:
    at = StatusHome(home)
    found = checked(at, doctor.check_java)
    assert (found.status, bool(found.repair)) == ("failed", True)
    java = at.programs / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    (at.programs / "release").write_text('JAVA_VERSION="21.0.1"\nIMPLEMENTOR="Somebody"\n')
    view = doctor.read_input(at.home, {**at.environment, "JAVA_HOME": str(at.programs)}, at.now, at.cache)
    assert [each.status for each in doctor.check_java(view)] == ["ok"]
    assert checked(at, doctor.check_python).status == "ok"


def test_jar_hashes_are_verified(at: StatusHome) -> None:
    """The jars have the right names and sizes but the wrong bytes."""
    found = checked(at, doctor.check_jars)
    assert (found.status, found.repair) == ("failed", ("hyp engine install",))
    assert "hash" in found.detail
    bare = replace(at, home=at.home)
    for path in jars.jar_folder(at.cache, jars.locked_jars()).iterdir():
        path.unlink()
    assert checked(bare, doctor.check_jars).status == "failed"
    assert checked(at, doctor.check_class_archive).status == "warning"


def test_home_open_to_other_users_fails(at: StatusHome) -> None:
    at.made()
    assert checked(at, doctor_home.check_permissions).status == "ok"
    at.home.state.chmod(0o644)
    found = checked(at, doctor_home.check_permissions)
    assert (found.status, found.repair) == ("warning", (f"chmod -R go= {at.home.root}",))
    at.home.root.chmod(0o755)
    assert checked(at, doctor_home.check_permissions).status == "failed"


def test_the_profile_of_the_home_is_named_and_one_that_is_not_supported_fails(at: StatusHome) -> None:
    at.made()
    found = checked(at, doctor_home.check_profile)
    assert (found.status, str(at.home.root) in found.detail) == ("ok", True)
    at.home.config.write_text('[lake]\nstate = { uri = "postgresql://db.example/hyp" }\n')
    found = checked(at, doctor_home.check_profile)
    assert (found.status, found.repair) == ("failed", ("hyp config set lake.state 'embedded'",))
    assert "lake.state" in found.detail


def test_disk_probe_leaves_no_file(at: StatusHome) -> None:
    at.made()
    assert checked(at, doctor_home.check_sync).status in ("ok", "warning")
    assert checked(at, doctor_home.check_file_system).status == "ok"
    assert checked(at, doctor_home.check_disk_space).name == "disk"
    assert [path for path in at.home.root.iterdir() if path.name.startswith(".probe")] == []


def test_databases_are_checked_completely(at: StatusHome) -> None:
    at.with_rows(200)
    checks = dict(doctor.CHECKS)
    for name in ("state", "catalog", "key_index"):
        assert checked(at, checks[name]).status == "ok"
    held = at.home.state.read_bytes()
    at.home.state.write_bytes(held[:4096] + b"\xff" * (len(held) - 4096))
    assert checked(at, checks["state"]).status == "failed"


def test_key_index_behind_its_table_is_reported(at: StatusHome) -> None:
    at.with_rows(3)
    with closing(sqlite3.connect(at.home.keys)) as db:
        db.execute("UPDATE applied SET through = 1")
        db.commit()
    found = checked(at, doctor_home.check_key_index)
    assert (found.status, found.repair) == ("warning", ("hyp flush",))


def test_clock_set_back_fails(at: StatusHome) -> None:
    at.with_rows(3)
    assert checked(at, doctor_home.check_clock).status == "ok"
    found = checked(replace(at, now=at.now - timedelta(hours=1)), doctor_home.check_clock)
    assert found.status == "failed"
    assert checked(replace(at, now=at.now - timedelta(seconds=5)), doctor_home.check_clock).status == "ok"


def test_config_and_its_secrets_are_checked(at: StatusHome) -> None:
    at.write_config("[oops]\n")
    assert checked(at, doctor_home.check_config).status == "failed"
    token = at.home.root / "token"
    sink = f'[sinks.team]\nkind = "forward"\nurl = "https://localhost"\ntoken_file = "{token}"\n'
    at.write_config(sink)
    assert checked(at, doctor_home.check_config).status == "ok"
    assert checked(at, doctor_home.check_secrets).status == "failed"
    token.write_text("hunter-2")
    token.chmod(0o644)
    assert checked(at, doctor_home.check_secrets).repair == (f"chmod 600 {token}",)
    token.chmod(0o600)
    found = checked(at, doctor_home.check_secrets)
    assert (found.status, "hunter-2" in found.detail) == ("ok", False)
    at.write_config(sink.replace(f'token_file = "{token}"', 'token_env = "NOT_SET"'))
    assert checked(at, doctor_home.check_secrets).status == "warning"


def test_gateway_port_is_ours_free_or_taken(at: StatusHome) -> None:
    at.made()
    for role, status in (("gateway", "ok"), ("fallback", "warning"), ("somebody", "failed")):
        with answering(handover.describe_health(at.home, role)) as port:
            at.write_config(f'[gateway]\nlisten = "127.0.0.1:{port}"\n')
            assert checked(at, doctor.check_gateway).status == status
    assert checked(at, doctor.check_gateway).status == "ok"
    at.write_config('[gateway]\nlisten = "192.0.2.1:18521"\nallowed_hosts = ["192.0.2.1"]\n')
    assert checked(at, doctor.check_gateway).status == "failed"


def test_client_version_and_attachment_are_checked(at: StatusHome) -> None:
    at.made().with_client()
    claude, codex, *_ = every(at, doctor.check_clients)
    assert (claude.status, "1.2.3 (claude)" in claude.detail, codex.status) == ("ok", True, "ok")
    at.attached(1)
    assert every(at, doctor.check_clients)[0].status == "failed"
    (at.programs / "claude").write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    assert "exit code 3" in every(at, doctor.check_clients)[0].detail


def test_attached_client_that_bypasses_the_gateway_is_reported(at: StatusHome) -> None:
    at.made().with_client()
    with answering(handover.describe_health(at.home, "gateway")) as port:
        at.write_config(f'[gateway]\nlisten = "127.0.0.1:{port}"\n').attached(port)
        assert every(at, doctor.check_clients)[0].status == "ok"
        bedrock = {**at.environment, "CLAUDE_CODE_USE_BEDROCK": "1"}
        found = next(doctor.check_clients(doctor.read_input(at.home, bedrock, at.now, at.cache)))
        assert (found.status, "Bedrock" in found.detail) == ("warning", True)


def test_missing_daemon_is_reported_if_it_is_needed(at: StatusHome) -> None:
    assert checked(at, doctor.check_daemon).status == "ok"
    at.write_config("[clients.claude]\nenabled = true\n")
    found = checked(at, doctor.check_daemon)
    assert (found.status, found.repair) == ("warning", ("hyp daemon start",))
    with at.daemon():
        assert checked(at, doctor.check_daemon).status == "ok"


def test_foreign_spark_process_that_holds_the_lake_is_reported(at: StatusHome) -> None:
    """Use another process, because a lock of this process does not count."""
    at.with_rows(1)
    at.home.lake_lock.touch(0o600)
    assert checked(at, doctor.check_engine).status == "ok"
    script = (
        f"import fcntl, sys\nheld = open({str(at.home.lake_lock)!r}, 'r+')\n"
        "fcntl.lockf(held, fcntl.LOCK_EX)\nprint(1, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert checked(at, doctor.check_engine).status == "warning"
        assert holder.stdin is not None
        holder.stdin.close()
    assert checked(at, doctor.check_daemon).detail == "not running"
    with at.daemon():
        assert str(os.getpid()) in checked(at, doctor.check_daemon).detail


def test_sink_reachability_and_clock_are_checked(at: StatusHome, tmp_path: Path) -> None:
    at.made()
    with answering({}) as port:
        at.write_config(f'[sinks.team]\nkind = "forward"\nurl = "http://localhost:{port}"\n')
        assert checked(at, doctor.check_sinks).status == "ok"
        found = checked(replace(at, now=at.now + timedelta(hours=3)), doctor.check_sinks)
        assert (found.status, "3 hours ahead of" in found.detail) == ("warning", True)
    assert checked(at, doctor.check_sinks).status == "failed"
    at.write_config(f'[sinks.archive]\nkind = "blob"\ndestination = "{tmp_path}/made/later"\n')
    assert checked(at, doctor.check_sinks).status == "ok"
    (tmp_path / "file").touch()
    at.write_config(f'[sinks.archive]\nkind = "blob"\ndestination = "{tmp_path}/file/below"\n')
    assert checked(at, doctor.check_sinks).status == "failed"


@pytest.mark.parametrize("open_port", [True, False])
def test_object_store_is_probed_at_its_endpoint(at: StatusHome, open_port: bool, free_port: FreePort) -> None:
    at.made()
    port = free_port()
    at.write_config(
        f'[sinks.store]\nkind = "blob"\ndestination = "s3://bucket/x"\nendpoint = "http://127.0.0.1:{port}"\n'
    )
    with socket.create_server(("127.0.0.1", port)) if open_port else nullcontext():
        assert checked(at, doctor.check_sinks).status == ("ok" if open_port else "failed")


def test_sink_is_not_probed_in_a_home_without_a_state(at: StatusHome, tmp_path: Path) -> None:
    at.write_config(f'[sinks.archive]\nkind = "blob"\ndestination = "{tmp_path}/out"\n')
    assert checked(at, doctor.check_sinks).status == "ok"
    assert not at.home.state.exists()
    open_home(at.home).store.close()
    assert "will be created" in checked(at, doctor.check_sinks).detail
