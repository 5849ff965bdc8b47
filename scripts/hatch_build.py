"""What hatchling asks while it builds HypAware: the version, and the files that are added to the wheel.

The version follows from the commit alone, so that every clone of it, however shallow, builds the same files:

- the commit has the tag `vX.Y.Z`: `X.Y.Z`, which must be the version that `hypaware/__init__.py` announces
- another commit: `X.Y.Z.devTIME+gHASH`, with the version to come, the commit's time in UTC and the start of its hash
- an unpacked sdist: what its `PKG-INFO` says
- none of these, for example a downloaded archive of the files: `X.Y.Z.dev0`, as written in `hypaware/__init__.py`

A wheel gets `hypaware/_version.py`, and the pages of docs/ with the changelog as `hypaware/help/`. An editable
installation gets neither: there the program reads the clone.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
_HASH_LENGTH = 9


def version(root: Path = ROOT) -> str:
    """Return the version of what is in the folder. Raise ValueError if the tag and the program disagree."""
    announced = _announced(root)
    if (root / "PKG-INFO").is_file():
        found = HeaderParser().parsestr((root / "PKG-INFO").read_text(encoding="utf-8"))["Version"]
        return str(found)
    commit = _git(root, "log", "-1", "--date=format-local:%Y%m%d%H%M%S", "--format=%H %cd")
    # A folder inside a clone of something else has no version of its own.
    if not commit or Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
        return announced
    base = announced.removesuffix(".dev0")
    tags = [tag for tag in _git(root, "tag", "--points-at", "HEAD").split() if re.fullmatch(r"v[0-9].*", tag)]
    if not tags:
        sha, moment = commit.split()
        return f"{base}.dev{moment}+g{sha[:_HASH_LENGTH]}"
    if tags != [f"v{base}"]:
        raise ValueError(f"this commit has the tag {' and '.join(tags)}, but hypaware/__init__.py says {announced}")
    return base


def _announced(root: Path) -> str:
    text = (root / "src/hypaware/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([0-9.]+\.dev0)"', text)
    if found is None:
        raise ValueError("src/hypaware/__init__.py does not announce a version such as 1.2.3.dev0")
    return found[1]


def _git(root: Path, *arguments: str) -> str:
    """Return the output of git, or "" if there is no git or no repository."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _environment() -> dict[str, str]:
    # Times are formatted in UTC; variables of a hook must not name another repository.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "TZ": "UTC"}


class CustomBuildHook(BuildHookInterface[Any]):
    _made: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        self._made = tempfile.TemporaryDirectory()
        made = Path(self._made.name) / "_version.py"
        made.write_text(f'__version__ = "{self.metadata.version}"\n', encoding="utf-8")
        added = {made: "hypaware/_version.py", root / "CHANGELOG.md": "hypaware/help/changelog.md"}
        added |= {page: f"hypaware/help/{page.name}" for page in sorted((root / "docs").glob("*.md"))}
        build_data["force_include"].update({str(path): name for path, name in added.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._made is not None:
            self._made.cleanup()
