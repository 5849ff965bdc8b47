"""Text has a contrast of at least 4.5 to 1 to what it stands on, in light and in dark."""

from __future__ import annotations

import re

import pytest

from hypaware.page.context import FOLDER

_STYLES = (FOLDER / "static" / "page.css").read_text(encoding="utf-8")
_SCHEMES = {
    "light": ":root",
    "dark": ':root:not([data-theme="light"])',
    "dark by choice": ':root[data-theme="dark"]',
}
_TEXTS = ("fg", "muted", "accent", "good", "warn", "bad")
_GROUNDS = ("bg", "panel", "raised", "soft")
_PAIRS = [
    *((text, ground) for text in _TEXTS for ground in _GROUNDS),
    ("accent-fg", "accent"),
    ("accent", "accent-soft"),
    ("good", "good-soft"),
    ("warn", "warn-soft"),
    ("bad", "bad-soft"),
]


def read_colours(scheme: str) -> dict[str, str]:
    """Return the tokens of the first rule with exactly this selector that sets a background."""
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"/\*.*?\*/", "", _STYLES, flags=re.DOTALL)):
        if selector.strip() == _SCHEMES[scheme] and "--bg:" in body:
            return dict(re.findall(r"--([\w-]+):\s*#([0-9a-f]{6})\b", body))
    raise AssertionError(f"page.css has no colours for {scheme}")


def luminance(colour: str) -> float:
    """Return the relative luminance as WCAG 2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", _SCHEMES)
@pytest.mark.parametrize(("text", "ground"), _PAIRS)
def test_text_has_enough_contrast(scheme: str, text: str, ground: str) -> None:
    colours = read_colours(scheme)
    low, high = sorted(luminance(colours[name]) for name in (text, ground))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_both_ways_to_dark_are_the_same() -> None:
    assert read_colours("dark") == read_colours("dark by choice")
