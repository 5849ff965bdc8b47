"""The loop that follows the transcripts of the chosen clients, in one thread.

A change of a known file makes it due. An unknown file or a new folder makes its client's survey due. A survey also runs
every minute, as a safety net: it finds what notifications missed, and messages that were held back until their file
is quiet. Folders that do not exist, or were replaced, are looked for every second.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from hypaware.backfill.providers import ProviderRegistry, RegisteredProvider, load_providers
from hypaware.backfill.request import ImportArguments, ImportPolicy, parse_request
from hypaware.backfill.source_rows import ImportContext
from hypaware.backfill.survey import ImportState, SourceSurvey, read_import_state, survey_dataset
from hypaware.clients import git
from hypaware.clients.client import WatchableProvider
from hypaware.config import ClientConfig, Config
from hypaware.errors import HypError
from hypaware.follow.folder_watch import FolderWatch
from hypaware.follow.followed_client import FollowedClient
from hypaware.follow.source_recorder import SourceRecorder
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from hypaware.state.location import find_machine
from hypaware.state.store import StateStore
from hypaware.text import summarize_error

log = logging.getLogger("hypaware.daemon")

_WAIT_SECONDS = 1.0
_GIT_SECONDS = 600.0
ChosenClients = Callable[[Config], Iterable[str]]


class Follower:
    """Follows the clients that `chosen` names for the current config. `run` is called in its own thread."""

    def __init__(self, home: Home, config: Callable[[], Config], chosen: ChosenClients) -> None:
        self._home = home
        self._config = config
        self._chosen = chosen
        self._clients: dict[str, FollowedClient] = {}
        self._configured: tuple[Config, tuple[str, ...]] | None = None
        self._watch: FolderWatch | None = None
        self._forget_git_at = time.monotonic() + _GIT_SECONDS
        self.status: dict[str, dict[str, Any]] = {}
        """Client → what is known about it; replaced as a whole."""
        self.covered: frozenset[str] = frozenset()
        """Clients whose transcripts are all followed, so that an import would find nothing."""
        self.covers_all = False
        """Whether there are clients, and all of them are covered."""
        self._began = datetime.now(UTC)

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop` is set. Raise HypError if the home cannot be opened."""
        with closing(open_home(self._home, make=False).store) as store, Spool(self._home, make=False) as spool:
            try:
                while not stop.is_set():
                    self._step(store, spool, stop)
            finally:
                self._close_watch()
                self.covered, self.covers_all = frozenset(), False

    def _step(self, store: StateStore, spool: Spool, stop: threading.Event) -> None:
        self._update_clients(store, spool)
        self._update_watch()
        now = time.monotonic()
        next_at = min((client.next_at() for client in self._clients.values()), default=now + _WAIT_SECONDS)
        seconds = min(_WAIT_SECONDS, max(0.0, next_at - now))
        if self._watch is None:
            stop.wait(seconds)
        else:
            for path, removed in self._watch.wait(seconds, stop):
                for client in self._clients.values():
                    if client.contains(path):
                        client.note_change(path, removed=removed)
        for client in self._clients.values():
            if not stop.is_set():
                client.work()
        if time.monotonic() > self._forget_git_at:
            # A folder may have become a repository since.
            git.forget_repositories()
            self._forget_git_at = time.monotonic() + _GIT_SECONDS
        self.covered = frozenset(name for name, client in self._clients.items() if client.is_covered)
        self.covers_all = bool(self._clients) and len(self.covered) == len(self._clients)
        self.status = {name: self._describe(client) for name, client in self._clients.items()}

    def _update_clients(self, store: StateStore, spool: Spool) -> None:
        config = self._config()
        names = tuple(self._chosen(config))
        if self._configured is not None and self._configured[0] is config and self._configured[1] == names:
            return
        self._configured = config, names
        providers = load_providers()
        self._clients = {
            entry.name: self._make_client(config, providers, entry, store, spool)
            for entry in providers
            if entry.name in names
        }
        self._close_watch()

    def _make_client(
        self, config: Config, providers: ProviderRegistry, entry: RegisteredProvider, store: StateStore, spool: Spool
    ) -> FollowedClient:
        survey = partial(survey_client, self._home, config, providers, entry, store, spool)
        variables = _variables()
        environment = {**variables, "HYP_HOME": str(self._home.root)}
        provider = entry.provider
        folders = provider.folders(environment) if isinstance(provider, WatchableProvider) else ()
        return FollowedClient(entry, folders, survey, began=self._began)

    def _update_watch(self) -> None:
        """Watch the folders that exist now."""
        folders = {folder for client in self._clients.values() for folder in client.folders if folder.is_dir()}
        watched = set(self._watch.folders) if self._watch else set()
        if folders == watched and (self._watch is None or self._watch.is_current()):
            return
        self._close_watch()
        try:
            self._watch = FolderWatch(sorted(folders)) if folders else None
        except (OSError, RuntimeError) as error:
            # A folder was removed just now, or cannot be read: the surveys continue, and the next step tries again.
            log.warning("cannot watch %s: %s", ", ".join(map(str, sorted(folders))), summarize_error(error))
        if self._watch is not None and self._watch.polling_reason:
            log.warning("transcripts are polled: %s", self._watch.polling_reason)
        # What happened before the watch began is found by a survey.
        for client in self._clients.values():
            client.request_survey()

    def _close_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _describe(self, client: FollowedClient) -> dict[str, Any]:
        watched = [folder for folder in client.folders if self._watch is not None and folder in self._watch.folders]
        reason = self._watch.polling_reason if self._watch and watched else None
        facts = client.describe()
        has_folder = bool(watched) or not client.is_watchable
        state = "failing" if facts["error"] else "following" if has_folder else "folder_missing"
        # A client that names no folders is always polled, so that needs no reason.
        mode = "polling" if reason or not client.is_watchable else "notifications"
        return {"state": state, "mode": mode, "polling_reason": reason, **facts}


def _variables() -> Mapping[str, str]:
    return {**os.environ, "HOME": os.environ.get("HOME") or str(Path.home())}


def survey_client(
    home: Home, config: Config, providers: ProviderRegistry, entry: RegisteredProvider, store: StateStore, spool: Spool
) -> tuple[list[SourceRecorder], ImportState, SourceSurvey]:
    """Look at all sources of a client, with today's window and the current privacy settings."""
    since, now = config.clients.get(entry.name, ClientConfig()).history_from, datetime.now(UTC)
    request = parse_request(
        home, config, providers, names=[entry.name], since=since or None, now=now, variables=_variables()
    )
    policy = ImportPolicy.from_config(home, config)
    arguments = ImportArguments(**request.args, now=now)
    recorders, surveys = [], []
    for name in entry.provider.datasets:
        if name not in datasets.list_names():
            raise HypError(f"no dataset {name} is registered", kind="dataset_not_registered")
        context = ImportContext(entry.name, name, request.environment, spool.gateway_id, policy, find_machine(home))
        recorders.append(SourceRecorder(spool, store, request, context))
        state = read_import_state(home, entry.name, name)
        dataset = datasets.get(name)
        surveys.append((state, survey_dataset(home, arguments, entry.provider, dataset, state, policy, in_order=False)))
    # All datasets have the same sources.
    state, found = max(surveys, key=lambda each: len(each[1].due))
    return recorders, state, found
