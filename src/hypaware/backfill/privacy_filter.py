"""Filter and redact imported rows: a small value that is sent to Spark's tasks.

Rows of a folder or session with the privacy class `ignore` are not imported; they are counted with the reason. The
source's checkpoint records the ignored folders and sessions. When one of them is no longer ignored, the checkpoint is
discarded and the source is read again from the beginning; the key index then drops the rows that are already in the
lake. If `redaction.kept` is on, rows lose their secrets before they are stored, as live rows do.

A filter evaluates each folder and session once per source, so that all rows of a source are treated alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypaware.config import PrivacyConfig
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import policy
from hypaware.privacy.policy import IGNORED_BY_SESSION, PrivacyPolicy

if TYPE_CHECKING:
    from hypaware.config import Config
    from hypaware.home import Home
    from hypaware.model.datasets import Dataset, Row
    from hypaware.state.sources import SourceCheckpoint

FOLDER_IGNORED, SESSION_IGNORED = "folder_ignored", "session_ignored"
"""Reasons in `lines_skipped`."""
# Enough for any real transcript. Beyond it, the rest becomes due when any recorded folder is no longer ignored.
_MAX_PAIRS = 1000
FolderAndSession = tuple[str | None, str | None]
"""(cwd, session id) of a row."""


@dataclass(frozen=True)
class ImportPolicy:
    home: Home | None = None
    """Without a home, every row is imported unchanged."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    redacts: bool = False
    rules_off: tuple[str, ...] = ()
    remembers: bool = False
    """Whether the policies of folders are recorded; a dry run does not."""

    @classmethod
    def from_config(cls, home: Home, config: Config, *, remembers: bool = True) -> ImportPolicy:
        return cls(home, config.privacy, config.redaction.kept, config.redaction.rules_off, remembers)

    def drop_stale(self, checkpoints: Mapping[str, SourceCheckpoint]) -> dict[str, SourceCheckpoint]:
        """Return the checkpoints without those of sources whose ignored rows may be imported now.

        Raise HypError if the privacy settings cannot be read.
        """
        if self.home is not None:
            policy.check_privacy_files(self.home)
        is_ignored = self.row_filter().skip_reason
        return {
            path: checkpoint for path, checkpoint in checkpoints.items() if all(map(is_ignored, checkpoint.ignored))
        }

    def row_filter(self) -> ImportFilter:
        privacy = PrivacyPolicy.from_config(self.home, self.privacy, remember=self.remembers) if self.home else None
        return ImportFilter(privacy, self.redacts, frozenset(self.rules_off))


UNRESTRICTED = ImportPolicy()


class ImportFilter:
    """Decides which rows are imported, and redacts them. Remembers every decision."""

    def __init__(
        self, privacy: PrivacyPolicy | None, redacts: bool = False, rules_off: frozenset[str] = frozenset()
    ) -> None:
        self._privacy = privacy
        self._redacts = redacts
        self._rules_off = rules_off
        self._reasons: dict[FolderAndSession, str | None] = {}

    def list_ignored(self, earlier: tuple[FolderAndSession, ...]) -> tuple[FolderAndSession, ...]:
        """Return the ignored pairs of earlier imports, whose lines are not read again, and those of this one."""
        ignored = [pair for pair, reason in self._reasons.items() if reason]
        return tuple(dict.fromkeys((*earlier, *ignored)))[:_MAX_PAIRS]

    def skip_reason(self, pair: FolderAndSession) -> str | None:
        """Return why rows of this folder and session are not imported; None if they are."""
        try:
            return self._reasons[pair]
        except KeyError:
            verdict = self._privacy.decide(*pair) if self._privacy else None
            reason = None
            if verdict is not None and verdict.privacy_class is PrivacyClass.IGNORE:
                reason = SESSION_IGNORED if verdict.reason == IGNORED_BY_SESSION else FOLDER_IGNORED
            self._reasons[pair] = reason
            return reason

    def redact(self, dataset: Dataset, row: Row) -> Row:
        if not self._redacts:
            return row
        from hypaware.privacy.redact import redact_row

        return redact_row(dataset, row, self._rules_off)[0]

    def redact_text(self, text: bytes) -> bytes:
        if not self._redacts:
            return text
        from hypaware.privacy.redact import redact_text

        return redact_text(text.decode("utf-8", "replace"), self._rules_off)[0].encode()


def folder_and_session(row: Row) -> FolderAndSession:
    cwd, session = row.get("cwd"), row.get("session_id")
    return cwd if isinstance(cwd, str) else None, session if isinstance(session, str) else None
