"""Every `@ref page#anchor` in the code names an anchor in docs/design, and every anchor is referenced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design"
_REF = re.compile(r"@ref ([a-z-]+#[a-z-]+)")
_ANCHOR = re.compile(r'<a id="([a-z-]+)"></a>\n## ')


def anchors() -> set[str]:
    return {f"{page.stem}#{name}" for page in DESIGN.glob("*.md") for name in _ANCHOR.findall(page.read_text())}


def references() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in _REF.findall(path.read_text()):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def test_every_reference_resolves() -> None:
    assert {name: where for name, where in references().items() if name not in anchors()} == {}


def test_every_anchor_is_referenced() -> None:
    assert sorted(anchors() - references().keys()) == []


def test_every_reference_is_well_formed() -> None:
    """A malformed reference would not be checked by the other tests."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        assert text.count("@ref") == len(_REF.findall(text)), path


@pytest.mark.parametrize("page", sorted(DESIGN.glob("*.md")), ids=lambda page: page.name)
def test_every_heading_has_an_anchor_and_every_page_is_listed(page: Path) -> None:
    if page.name == "README.md":
        return
    text = page.read_text()
    assert text.count("\n## ") == len(_ANCHOR.findall(text))
    assert f"[{page.name}]({page.name})" in (DESIGN / "README.md").read_text()
