"""The pages of the documentation that `hyp help` shows.

A built package contains them as `hypaware/help/*.md`; in a clone they are in `docs/`.
"""

from __future__ import annotations

from pathlib import Path

import hypaware


def list_topics() -> list[tuple[str, str]]:
    """Return each page with its heading."""
    found = []
    for name, path in find_pages().items():
        with path.open(encoding="utf-8") as page:
            found.append((name, page.readline().lstrip("# ").strip()))
    return found


def find_pages() -> dict[str, Path]:
    """Return the pages by name."""
    package = Path(hypaware.__file__).parent
    packed, clone = package / "help", package.parents[1]
    pages = list((packed if packed.is_dir() else clone / "docs").glob("*.md"))
    if not packed.is_dir():
        pages.append(clone / "CHANGELOG.md")
    found = {path.stem.lower(): path for path in pages if path.is_file() and path.stem != "README"}
    return dict(sorted(found.items()))
