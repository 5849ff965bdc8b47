"""Privacy classes: `full` (recorded and exported), `local-only` (recorded, never exported), `ignore` (not recorded)."""

from __future__ import annotations

from enum import IntEnum


class PrivacyClass(IntEnum):
    """A higher value is stricter."""

    FULL = 0
    LOCAL_ONLY = 1
    IGNORE = 2

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")

    @classmethod
    def parse(cls, label: str) -> PrivacyClass:
        """Return the class with this name; an unknown name means the strictest class."""
        return next((each for each in cls if each.label == label.lower()), cls.IGNORE)


PRIVACY_CLASS_NAMES = tuple(each.label for each in PrivacyClass)
