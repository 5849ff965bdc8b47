"""The arguments of the reading commands, and a parser for those that are plain.

Importing click takes longer than most answers of the index. `parse_plainly` therefore reads arguments that are spelled
out in full and valid (`--project shop --limit 5 --json`); `hypaware.cli.reader_commands` declares the same arguments to
click, which handles everything else: help, completion, abbreviations and errors. Both call `run_reading_command`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hypaware.index.filters import Filters

_MAX_DAYS = 36_500
_MAX_DIGITS = 9


class ReadingOption(NamedTuple):
    flag: str
    help: str
    metavar: str | None = None
    """None if the option takes no value, or one of the choices. A PATH is completed by the shell."""
    choices: tuple[str, ...] = ()
    least: int | None = None
    """If given, the value is a number of at least this."""
    most: int | None = None
    default: Any = None
    parameter: str | None = None
    """The name of the value, if it is not that of the flag."""
    short: str | None = None

    @property
    def name(self) -> str:
        return self.parameter or self.flag.lstrip("-").replace("-", "_")

    @property
    def takes_value(self) -> bool:
        return self.metavar is not None or bool(self.choices)

    def parse(self, text: str) -> Any:
        """Return the value of a text. Raise ValueError if it may be invalid: click says how."""
        if text.startswith("-") or (self.choices and text not in self.choices):
            raise ValueError(text)
        if self.least is None:
            return text
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise ValueError(text)
        number = int(text)
        if number < self.least or (self.most is not None and number > self.most):
            raise ValueError(text)
        return number


FILTERS = (
    ReadingOption("--project", "Only this project: a path, or the last folder of one.", "P"),
    ReadingOption("--client", "Only this client, such as claude or codex.", "C"),
    ReadingOption("--model", "Only models whose name starts with this.", "M"),
    ReadingOption("--since", "Nothing older: 2026-11-15, 2026-11-15T08:00Z, 7d, 12h.", "DATE"),
    ReadingOption("--until", "Nothing newer; a date includes the whole day.", "DATE"),
    ReadingOption("--machine", "Only the machine with this gateway id.", "ID"),
    ReadingOption("--timezone", "Zone of days and times.  [default: your own]", "ZONE"),
)
DAYS = ReadingOption("--days", "Show only the last N days, including today.", "N", least=1, most=_MAX_DAYS)
ROWS = ReadingOption("--limit", "Show at most this many rows of each table; 0 means all.", "N", least=0)
_LIMIT = ReadingOption("--limit", "Show at most this many; 0 means no limit.", "N", least=0)
COMMANDS: dict[str, tuple[ReadingOption, ...]] = {
    "sessions": (
        *FILTERS,
        ReadingOption("--errors", "Only sessions with errors, such as failed tool calls.", default=False),
        ReadingOption("--tool", "Only sessions that have called this tool, such as Bash.", "T"),
        ReadingOption("--failed", "Only sessions in which a call of this tool has failed.", "T"),
        ReadingOption(
            "--weekday",
            "Only sessions that were active on this day of the week.",
            choices=("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
        ),
        ReadingOption("--hour", "Only sessions that were active in this hour, 0 to 23.", "H", least=0, most=23),
        ReadingOption("--grep", "Only sessions with a part that contains the words, as for hyp search.", "WORDS"),
        ReadingOption(
            "--sort",
            "Newest first, or the largest first: cost, tokens, or length in messages.",
            choices=("time", "cost", "tokens", "length"),
            default="time",
        ),
        _LIMIT,
    ),
    "show": (
        ReadingOption("--last", "Show the newest session, or the newest one that matches the filters.", default=False),
        ReadingOption(
            "--format",
            "Print in this format.  [default: the one that the name of --output implies, else text]",
            choices=("text", "markdown", "html", "json"),
            parameter="format_",
        ),
        ReadingOption(
            "--output", "Write to this file, replacing it only on success.", "PATH", parameter="target", short="-o"
        ),
        ReadingOption("--redact", "Replace secrets, such as API keys, with markers.", default=False),
        ReadingOption("--thinking", "Show all of the model's thinking.", default=False),
        ReadingOption(
            "--full", "Show complete results, diffs and arguments, and what the client added.", default=False
        ),
        ReadingOption("--follow", "Keep showing new parts as they arrive, until Ctrl-C.", default=False, short="-f"),
        *FILTERS,
    ),
    "usage": (
        ReadingOption(
            "--by",
            "Group by this.  [default: day]",
            choices=("day", "week", "month", "project", "model", "client", "session", "machine"),
        ),
        ReadingOption(
            "--statusline", "Print one line for a status bar: this session, today, this month.", default=False
        ),
        *FILTERS,
        _LIMIT,
    ),
    "overview": (DAYS, *FILTERS, ROWS),
    "search": (
        ReadingOption("--role", "Only what this role said: user, assistant, tool or system.", "R"),
        ReadingOption("--tool", "Only calls and results of this tool, such as Bash.", "T"),
        ReadingOption("--type", "Only parts of this type, such as text or tool_call.", "TYPE", parameter="part_type"),
        *FILTERS,
        ReadingOption("--limit", "Show at most this many; 0 means all.", "N", least=0, default=20),
    ),
}
"""The options of each command, in the order of its help. All have --json too; `hyp search` takes words, `hyp show` the
id of a session."""


def parse_plainly(args: Sequence[str]) -> dict[str, Any] | None:
    """Return the values of a reading command and its arguments, or None if click must parse them.

    The first argument is the command. `as_json` is one of the values.
    """
    if not args or args[0] not in COMMANDS or "HYP_CRASH_AT" in os.environ or "_HYP_COMPLETE" in os.environ:
        return None
    options = {flag: option for option in COMMANDS[args[0]] for flag in (option.flag, option.short) if flag}
    given: dict[str, Any] = {"as_json": False, **{option.name: option.default for option in options.values()}}
    words: list[str] = []
    rest = iter(args[1:])
    for each in rest:
        flag, has_value, value = each.partition("=")
        if each == "--":
            words += rest
        elif each == "--json":
            given["as_json"] = True
        elif not each.startswith("-") or each == "-":
            words.append(each)
        elif (option := options.get(flag)) is None or (has_value and (not option.takes_value or flag == option.short)):
            return None
        elif option.takes_value:
            try:
                given[option.name] = option.parse(value if has_value else next(rest))
            except (StopIteration, ValueError):
                return None
        else:
            given[option.name] = True
    if args[0] == "show":
        given["session"] = words.pop() if words else None
    elif args[0] == "search":
        given["words"] = tuple(words)
        return given if words else None
    return None if words else given


def _choose_sessions(filters: Filters, given: dict[str, Any]) -> Filters:
    """Return the filters with those that only `hyp sessions` has, and remove these from the values."""
    from hypaware.index.session_traits import WEEKDAYS

    tool, failed, weekday, hour = (given.pop(name) for name in ("tool", "failed", "weekday", "hour"))
    day = None if weekday is None else WEEKDAYS.index(weekday)
    return filters._replace(tool=tool, failed=failed, weekday=day, hour=hour)


def run_reading_command(command: str, given: dict[str, Any]) -> None:
    """Run a command with its values, except `as_json`."""
    from hypaware.index.filters import make_filters

    filters = make_filters(**{option.name: given.pop(option.name) for option in FILTERS})
    if command == "sessions":
        from hypaware.cli.sessions import show_sessions

        show_sessions(_choose_sessions(filters, given), **given)
    elif command == "usage":
        from hypaware.cli.usage import show_usage

        show_usage(filters, **given)
    elif command == "overview":
        from hypaware.cli.overview import show_overview

        show_overview(filters, **given)
    elif command == "show":
        from hypaware.cli.show import show_session

        # Following goes on for hours.
        gc.enable()
        show_session(filters, **given)
    else:
        from hypaware.cli.search import show_matches

        show_matches(filters, **given)
