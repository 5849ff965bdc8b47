"""Accessibility checks by axe-core 4.14.0 of npm, under the Mozilla Public License 2.0 (see tests/fixtures/axe)."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

_AXE = Path(__file__).parents[1] / "fixtures" / "axe" / "axe.min.js.xz"
_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
_RUN = """
async (rules) => {
  const options = {resultTypes: ["violations"], ...(rules.length && {runOnly: rules})};
  return (await axe.run(document, options)).violations.flatMap((rule) =>
    rule.nodes.map((node) => `${rule.id}: ${rule.help}: ${node.html}`));
}
"""


def find_violations(page: Page, only: Sequence[str] = ()) -> list[str]:
    """Return what axe objects to on a page, each with its rule and its element; `only` names the rules to check."""
    # Playwright evaluates it in the page, but outside the content security policy.
    page.evaluate(_load_axe())
    found: list[Any] = page.evaluate(_RUN, list(only))
    return [str(each) for each in found]


@cache
def _load_axe() -> str:
    source = lzma.decompress(_AXE.read_bytes())
    assert hashlib.sha256(source).hexdigest() == _SHA256, f"{_AXE} was changed"
    return source.decode()
