"""The steps of a set-up. Each can be done again: what is there already is left, what is missing is added."""

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
    """Raises HypError where there can be no config, or no home: then nothing else is begun."""
    configuring.foretell(plan.home, plan.choices, plan.found, plan.now)
    identify(plan.home)
    try:
        written = configuring.write(plan.home, plan.choices, plan.found, plan.now)
    except OSError as error:
        raise Retryable(f"{plan.home.config} cannot be written: {error}", kind="config_unwritable") from error
    made, backup = written.configured, written.backup
    facts = {"path": str(made.path), "backup": str(backup) if backup else None}
    if not made.is_changed:
        return made, Step("config", "unchanged", f"{made.path} is kept as it is", facts=facts)
    notes = (f"what it was before is in {backup}",) if backup else ()
    return made, Step("config", "done", f"{made.path} is written", notes=notes, facts=facts)


def install_engine(plan: Plan, heard: Listener) -> Step:
    """Only the jars: what makes the next start faster is prepared in the background of the first one."""
    found = java.find()
    fetched = jars.install(plan.cache, heard.progress)
    said = f"its jars are in {fetched.paths[0].parent}, Java is {found.version}"
    return Step("engine", "done" if fetched.fetched else "unchanged", said, facts={"java": found.version})


def import_history(plan: Plan, made: Configured, heard: Listener) -> Step:
    def run(args: dict[str, Any]) -> dict[str, Any]:
        return engine.run_job(plan.home, made.config, "backfill", args, heard.event)

    return importing.take_in(plan, importing.wanted(plan, made.config, made.clients), run, dry_run=False)


def start_daemon(plan: Plan) -> Step:
    before = instance.running(plan.home)
    pid = starting.start(plan.home, starting.PATIENT_SECONDS)
    if pid == before:
        return Step("daemon", "unchanged", f"runs as process {pid} already", facts={"pid": pid})
    return Step("daemon", "done", f"runs as process {pid}", facts={"pid": pid})


def overview(plan: Plan, config: Config, heard: Listener) -> dict[str, Any] | None:
    """None where nothing is recorded: for that no engine needs to start."""
    from hypaware.query.overview import nothing_recorded

    if nothing_recorded(plan.home):
        return None
    heard.progress("looking over what is there")
    return engine.run_job(plan.home, config, "overview", {"since": None, "refresh": "auto"}, heard.event)
