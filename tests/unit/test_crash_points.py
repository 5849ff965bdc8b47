from __future__ import annotations

import re
from pathlib import Path

import pytest

import hypaware
from hypaware import faults
from hypaware.home import Home
from tests.support.command import Hyp
from tests.support.processes import run, succeed

SOURCE = Path(hypaware.__file__).parent
NAME = re.compile(r"[a-z_]+\.[a-z-]+\.(before|after)-[a-z-]+")


def test_the_crash_points_of_every_module_are_found() -> None:
    declaring = {
        ".".join(("hypaware", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in SOURCE.rglob("*.py")
        if re.search(r"^\S.*\bfaults\.(?:crash_)?point\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert declaring == set(faults.crash_point_modules().values())


def test_a_crash_point_name_has_a_package_a_step_and_a_side() -> None:
    """Run the command, because this process also has crash points of tests."""
    points = Hyp(Path("/nonexistent")).ok("dev", "crash-points")["points"]

    assert points
    for point in points:
        assert NAME.fullmatch(point["name"]), point
        assert (SOURCE / point["package"]).is_dir() or (SOURCE / f"{point['package']}.py").is_file(), point
        assert point["about"]


def test_crash_point_names_are_read_without_importing_their_modules(home: Home) -> None:
    reading = "import sys; from hypaware import faults; print(*faults.crash_point_modules()); print(*sys.modules)"
    names, imported = succeed(reading, home).splitlines()

    assert set(names.split()) == {point.name for point in faults.list_crash_points()}
    assert not set(faults.crash_point_modules().values()) & set(imported.split())


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        (("status",), "lake.commit.after-comit"),
        (("backfill", "--dry-run"), "lake.commit.after-comit:2"),
        (("backfill", "list"), "lak.commit.after-commit"),
        (("daemon", "run"), "lake.commit.after-commits"),
    ],
)
def test_an_unknown_crash_point_is_a_usage_error(home: Home, command: tuple[str, ...], spec: str) -> None:
    """A test with a misspelt crash point would prove nothing."""
    refused = Hyp(home.root).run(*command, HYP_CRASH_AT=spec)

    assert refused.code == 2
    assert f"HYP_CRASH_AT={spec}: unknown crash point. Did you mean lake.commit.after-commit?" in refused.err
    assert "hyp dev crash-points" in refused.err
    assert not home.root.exists()


def test_an_unknown_crash_point_is_reported_in_json(home: Home) -> None:
    refused = Hyp(home.root).run("flush", "--json", HYP_CRASH_AT="x")

    assert refused.code == 2
    assert refused.json["error"]["kind"] == "usage"
    assert refused.json["error"]["repair"] == ["hyp dev crash-points"]


def test_help_the_list_and_a_client_hook_ignore_an_unknown_crash_point(home: Home) -> None:
    for command in (("flush", "--help"), ("dev", "crash-points"), ("hook", "claude")):
        assert Hyp(home.root).run(*command, HYP_CRASH_AT="x").code == 0, command


def test_a_program_that_uses_a_spool_is_warned_once(home: Home) -> None:
    program = """
from hypaware import faults
reach = faults.crash_point("test.here.after-step", "")
reach()
reach()
"""
    warned = run(program, home, crash_at="test.there.after-step").stderr

    assert warned.startswith("warning: HYP_CRASH_AT=test.there.after-step: unknown crash point.")
    assert warned.count("\n") == 1
    assert run(program, home, crash_at="lake.commit.after-commit").stderr == ""
    assert run(program, home, crash_at="test.here.after-step:3").stderr == ""
