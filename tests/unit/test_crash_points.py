from __future__ import annotations

import re
from pathlib import Path

import hypaware
from hypaware import crash_points

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
    points = crash_points.all_points()

    assert points
    for point in points:
        assert NAME.fullmatch(point.name), point.name
        assert (SOURCE / point.package).is_dir(), point.name
        assert point.about
