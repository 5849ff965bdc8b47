"""The steps of a setup. Each can be repeated: it keeps what exists and adds what is missing."""

from __future__ import annotations

from typing import Any

from hypaware.config import Config
from hypaware.daemon import instance, starting
from hypaware.engine import client as engine
from hypaware.engine import jars, java
from hypaware.errors import Retryable
from hypaware.opening import identify
from hypaware.setup import configuring, importing
from hypaware.setup.configuring import Configured
from hypaware.setup.plan import Listener, Plan, Step


def configure(plan: Plan) -> tuple[Configured, Step]:
    """Write the config. Raise HypError if the config or the home cannot be created; then no other step runs."""
    configuring.foretell(plan.home, plan.choices, plan.found, plan.now)
    identify(plan.home)
    try:
        written = configuring.write(plan.home, plan.choices, plan.found, plan.now)
    except OSError as error:
        raise Retryable(f"cannot write {plan.home.config}: {error}", kind="config_unwritable") from error
    made, backup = written.configured, written.backup
    facts = {"path": str(made.path), "backup": str(backup) if backup else None}
    if not made.is_changed:
        return made, Step("config", "unchanged", f"{made.path} is unchanged", facts=facts)
    notes = (f"the previous version is in {backup}",) if backup else ()
    return made, Step("config", "done", f"{made.path} written", notes=notes, facts=facts)


def install_engine(plan: Plan, listener: Listener) -> Step:
    """Download the jars. The class archive for faster starts is built in the background of the first start."""
    found = java.find()
    fetched = jars.install(plan.cache, listener.progress)
    message = f"jars in {fetched.paths[0].parent}, Java {found.version}"
    return Step("engine", "done" if fetched.fetched else "unchanged", message, facts={"java": found.version})


def import_history(plan: Plan, made: Configured, listener: Listener) -> Step:
    def run(args: dict[str, Any]) -> dict[str, Any]:
        return engine.run_job(plan.home, made.config, "backfill", args, listener.event)

    return importing.take_in(plan, importing.wanted(plan, made.config, made.clients), run, dry_run=False)


def start_daemon(plan: Plan) -> Step:
    before = instance.running(plan.home)
    pid = starting.start(plan.home, starting.PATIENT_SECONDS)
    if pid == before:
        return Step("daemon", "unchanged", f"already running as process {pid}", facts={"pid": pid})
    return Step("daemon", "done", f"running as process {pid}", facts={"pid": pid})


def overview(plan: Plan, config: Config, listener: Listener) -> dict[str, Any] | None:
    """Return the overview, or None without starting an engine if nothing is recorded."""
    from hypaware.query.overview import nothing_recorded

    if nothing_recorded(plan.home):
        return None
    listener.progress("reading the overview")
    return engine.run_job(plan.home, config, "overview", {"since": None, "refresh": "auto"}, listener.event)
