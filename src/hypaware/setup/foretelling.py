"""The steps of a dry run: in this process, without an engine and without a trace on disk."""

from __future__ import annotations

from typing import Any

from hypaware.backfill.dry import dry_run
from hypaware.daemon import instance
from hypaware.engine import jars, java
from hypaware.errors import HypError
from hypaware.file_system import refuse_network
from hypaware.setup import configuring, importing
from hypaware.setup.configuring import Configured
from hypaware.setup.plan import Listener, Plan, Step


def configure(plan: Plan) -> tuple[Configured, Step]:
    made = configuring.foretell(plan.home, plan.choices, plan.found, plan.now)
    refuse_network(plan.home.root)
    facts = {"path": str(made.path), "diff": made.diff}
    if not made.is_changed:
        return made, Step("config", "unchanged", f"{made.path} would stay unchanged", facts=facts)
    notes = (f"the previous version would be kept as {made.path}.bak-<time>",) if made.changes else ()
    return made, Step("config", "would", f"{made.path} would be written", notes=notes, facts=facts)


def install_engine(plan: Plan) -> Step:
    commands: tuple[str, ...] = ()
    try:
        java_status = f"Java {java.find().version}"
    except HypError as error:
        java_status, commands = error.message, error.repair
    try:
        jars.installed(plan.cache)
    except HypError:
        size = sum(jar.size for jar in jars.locked()) / 1e6
        message = f"{len(jars.locked())} jars ({size:.0f} MB) would be downloaded to {plan.cache}; {java_status}"
        return Step("engine", "would", message, commands)
    return Step("engine", "unchanged", f"jars are installed; {java_status}", commands)


def import_history(plan: Plan, made: Configured, listener: Listener) -> Step:
    def progress(message: str, done: float, total: float, facts: dict[str, Any]) -> None:
        listener.progress(message, done, total, **facts)

    def run(args: dict[str, Any]) -> dict[str, Any]:
        return dry_run(plan.home, made.config, args, progress)

    return importing.take_in(plan, importing.wanted(plan, made.config, made.clients), run, dry_run=True)


def start_daemon(plan: Plan) -> Step:
    pid = instance.running(plan.home)
    if pid is not None:
        return Step("daemon", "unchanged", f"already running as process {pid}", facts={"pid": pid})
    return Step("daemon", "would", "would be started")
