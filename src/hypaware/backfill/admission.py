"""What of a client's history may be taken in, and in which form: a small value that goes along to Spark's tasks.

Rows of a folder or a session of the class `ignore` are not imported, and counted with the reason. Which folders and
sessions those were stands in the source's mark: when one of them is no longer ignored, the mark is not believed, and
the source is read again from its beginning; the keys say what is there already. Where `redaction.kept` is on, rows
lose their secrets before they are stored, as live ones do.

Whoever asks about one source asks once about each folder and session, so that all of it is judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypaware.capture import privacy as privacy_of
from hypaware.capture.privacy import BY_SESSION, Privacy
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.config import PrivacyConfig

if TYPE_CHECKING:
    from hypaware.config import Config
    from hypaware.home import Home
    from hypaware.model.datasets import Dataset, Row
    from hypaware.state.source_mark import SourceMark

FOLDER, SESSION = "folder_ignored", "session_ignored"
"""Why a row was not taken, in `lines_skipped`."""

# A source with more ignored folders than this is one that nobody wrote by hand; the rest is due when any is lifted.
_MOST_PAIRS = 1000

Pair = tuple[str | None, str | None]
"""(cwd, session id) of a row."""


@dataclass(frozen=True)
class Admission:
    home: Home | None = None
    """Without one everything is taken in as it is."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    redacts: bool = False
    rules_off: tuple[str, ...] = ()
    remembers: bool = False
    """Whether what folders say of themselves is written down: not by a dry run."""

    @classmethod
    def of(cls, home: Home, config: Config, *, remembers: bool = True) -> Admission:
        return cls(home, config.privacy, config.redaction.kept, config.redaction.rules_off, remembers)

    def check(self) -> None:
        """Raises HypError where nobody can say what may be taken in."""
        if self.home is not None:
            privacy_of.check(self.home)

    def standing(self, marks: Mapping[str, SourceMark]) -> dict[str, SourceMark]:
        """The marks that still count: not those of sources whose ignored rows may be taken in now."""
        self.check()
        door = self.door()
        return {path: mark for path, mark in marks.items() if all(map(door.why_not, mark.ignored))}

    def door(self) -> Door:
        privacy = Privacy.of(self.home, self.privacy, remembers=self.remembers) if self.home else None
        return Door(privacy, self.redacts, frozenset(self.rules_off))


EVERYTHING = Admission()


class Door:
    """Judges rows, and remembers what it said."""

    def __init__(self, privacy: Privacy | None, redacts: bool = False, rules_off: frozenset[str] = frozenset()) -> None:
        self._privacy = privacy
        self._redacts = redacts
        self._off = rules_off
        self._said: dict[Pair, str | None] = {}

    @property
    def ignored(self) -> tuple[Pair, ...]:
        found = [pair for pair, why in self._said.items() if why]
        return tuple(found[:_MOST_PAIRS])

    def why_not(self, pair: Pair) -> str | None:
        """Why such rows are not taken in; None if they are."""
        try:
            return self._said[pair]
        except KeyError:
            return self._said.setdefault(pair, self._judged(pair))

    def _judged(self, pair: Pair) -> str | None:
        verdict = self._privacy.verdict(*pair) if self._privacy else None
        if verdict is None or verdict.privacy is not PrivacyClass.IGNORE:
            return None
        return SESSION if verdict.why == BY_SESSION else FOLDER

    def as_kept(self, dataset: Dataset, row: Row) -> Row:
        """The row as it is to be stored."""
        if not self._redacts:
            return row
        from hypaware.capture.redact import redact_row

        return redact_row(dataset, row, self._off)[0]

    def text_as_kept(self, text: bytes) -> bytes:
        if not self._redacts:
            return text
        from hypaware.capture.redact import redact_text

        return redact_text(text.decode("utf-8", "replace"), self._off)[0].encode()


def pair_of(row: Row) -> Pair:
    cwd, session = row.get("cwd"), row.get("session_id")
    return cwd if isinstance(cwd, str) else None, session if isinstance(session, str) else None


def both(earlier: tuple[Pair, ...], now: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """What earlier imports of a source ignored is not seen again, and counts still."""
    return tuple(dict.fromkeys((*earlier, *now)))[:_MOST_PAIRS]
