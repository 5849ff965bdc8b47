from __future__ import annotations

import re
from pathlib import Path

import hypaware
from hypaware import crash_points
from tests.command import Hyp

SOURCE = Path(hypaware.__file__).parent
NAME = re.compile(r"[a-z_]+\.[a-z-]+\.(before|after)-[a-z-]+")


def test_every_module_that_declares_a_crash_point_is_listed() -> None:
    declaring = {
        ".".join(("hypaware", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in SOURCE.rglob("*.py")
        if re.search(r"^\S.*\bfaults\.point\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert declaring == set(crash_points.MODULES)


def test_a_crash_point_says_its_package_its_step_and_its_side() -> None:
    """Asked of the command, in a process that has none of the tests' own points."""
    points = Hyp(Path("/nonexistent")).ok("dev", "crash-points")["points"]

    assert points
    for point in points:
        assert NAME.fullmatch(point["name"]), point
        assert (SOURCE / point["package"]).is_dir(), point
        assert point["about"]
