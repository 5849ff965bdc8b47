"""What a shell offers for an argument or option: recorded sessions and projects, sinks, datasets, clients, topics.

Which values a parameter takes is found by its name in `VALUES`, so that all commands complete the same things in the
same way. A completer imports little, writes nothing, and offers nothing rather than fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from click.shell_completion import CompletionItem

from hypaware.home import Home

SHELLS = ("bash", "zsh", "fish")
Completer = Callable[[str], Iterable[str | tuple[str, str]]]
"""Takes the text typed so far, and returns values, each with a description if it has one."""


def _sessions(start: str) -> list[tuple[str, str]]:
    from hypaware.index.completions import complete_sessions

    return complete_sessions(Home.from_environment(), start)


def _filter(name: str) -> Completer:
    def complete(start: str) -> list[str]:
        from hypaware.index.completions import complete_filter

        return complete_filter(Home.from_environment(), name, start)

    return complete


def _sinks(start: str) -> list[str]:
    from hypaware import config

    return list(config.load(Home.from_environment()).sinks)


def _datasets(start: str) -> tuple[str, ...]:
    from hypaware.model import datasets

    return datasets.list_names()


def _providers(start: str) -> list[str]:
    from importlib.metadata import entry_points

    return sorted(each.name for each in entry_points(group="hypaware.clients"))


def _topics(start: str) -> list[tuple[str, str]]:
    from hypaware.cli.help_pages import list_topics

    return list_topics()


VALUES: dict[str, Completer] = {
    **dict.fromkeys(("session", "sessions", "session_id"), _sessions),
    **{name: _filter(name) for name in ("project", "model", "machine")},
    **dict.fromkeys(("sink", "sinks"), _sinks),
    **dict.fromkeys(("dataset", "datasets"), _datasets),
    **dict.fromkeys(("client", "clients", "name", "providers", "source", "sources"), _providers),
    "shell": lambda start: SHELLS,
    "topic": _topics,
}


def complete_value(name: str, start: str) -> list[CompletionItem]:
    """Return the values that begin like this; none if they cannot be read."""
    with suppress(Exception):
        found = [each if isinstance(each, tuple) else (each, None) for each in VALUES[name](start)]
        return [CompletionItem(value, help=about) for value, about in found if value.startswith(start)]
    return []
