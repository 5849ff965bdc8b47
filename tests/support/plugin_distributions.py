"""Creates installed distributions in a folder on the import path, without an installer."""

from __future__ import annotations

import sys
from pathlib import Path


def install(site: Path, distribution: str, entry_points: str, module: str = "", code: str = "") -> None:
    folder = site / f"{distribution.replace('-', '_')}-1.2.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2.3\n")
    (folder / "entry_points.txt").write_text(entry_points)
    if module:
        (site / f"{module}.py").write_text(code)
        sys.modules.pop(module, None)
