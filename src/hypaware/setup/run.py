"""Run all steps of a setup, for real or as a dry run.

Without a config no other step runs. After that, every step runs unless it depends on one that failed: the import needs
the engine, and attaching needs the daemon. Completed steps are kept; another run does the rest. Each step can be
repeated: it keeps existing parts and adds missing ones. With `dry_run`, a step only reports what it would do: in this
process, without an engine and without a trace on disk.

The import is bounded by the retention and by the start time of the setup, so that it never overlaps with live
recording. If one client fails, the others are still imported. The daemon follows the transcripts of the chosen clients.
Clients are attached only if the user asked for it, once the gateway answers; an attached client stays attached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hypaware import telemetry
from hypaware.backfill import dry_run as backfill_dry_run
from hypaware.backfill.providers import load_providers
from hypaware.backfill.report import find_failure
from hypaware.backfill.request import ImportRequest, parse_request
from hypaware.clients.attach import AttachResult, ClientSettings, attach_client, read_record
from hypaware.config import Config
from hypaware.daemon import lifecycle
from hypaware.engine import client, jars, jvm
from hypaware.errors import Cancelled, HypError, NotReady, Retryable
from hypaware.gateway import handover
from hypaware.gateway.attach_status import probe_gateway
from hypaware.gateway.handover import gateway_unreachable, gateway_url
from hypaware.home import Home, daemon_process
from hypaware.home.durable_files import reject_network_file_system
from hypaware.setup.config import MergedConfig, merge_config, write_config
from hypaware.setup.plan import SetupListener, SetupPlan, SetupStep, StepStatus
from hypaware.state.home_opener import read_identity
from hypaware.text import format_count, format_size, summarize_error

# The daemon is already running; its gateway may need a moment longer.
_GATEWAY_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class SetupResult:
    home: Home
    dry_run: bool
    config: MergedConfig
    steps: tuple[SetupStep, ...]
    overview: dict[str, Any] | None = None

    @property
    def failed(self) -> list[SetupStep]:
        return [step for step in self.steps if step.error is not None]

    @property
    def backfill(self) -> dict[str, Any] | None:
        """The report of the import, in the format of `hyp backfill`."""
        return next((step.facts["backfill"] for step in self.steps if "backfill" in step.facts), None)

    def as_json(self) -> dict[str, Any]:
        steps = [{name: fact for name, fact in step.as_json().items() if name != "backfill"} for step in self.steps]
        return {
            "home": str(self.home.root),
            "dry_run": self.dry_run,
            "clients": list(self.config.clients),
            "steps": steps,
            "backfill": self.backfill,
            "overview": self.overview,
        }


def run_setup(plan: SetupPlan, listener: SetupListener, *, dry_run: bool = False) -> SetupResult:
    """Run all steps. A dry run reports the same steps without changing anything."""
    runner = _StepRunner(listener)
    merged, first = configure_home(plan, dry_run=dry_run)
    runner.add(first)
    engine = runner.attempt(
        "engine",
        lambda: _planned_engine(plan) if dry_run else install_engine(plan, listener),
        later=("hyp engine install",),
    )
    if engine.error and plan.choices.imports:
        runner.add(SetupStep("import", "skipped", "requires the engine", ("hyp backfill",)))
    else:
        runner.attempt(
            "import",
            lambda: import_history(plan, merged, listener, dry_run=dry_run),
            later=("hyp backfill --dry-run" if dry_run else "hyp backfill",),
        )
    if not plan.choices.daemon:
        runner.add(SetupStep("daemon", "skipped", "declined", () if dry_run else ("hyp daemon start",)))
        skip_reason: str | None = "requires the daemon"
    else:
        daemon = runner.attempt(
            "daemon", lambda: start_daemon(plan, merged.clients, dry_run=dry_run), later=("hyp daemon start",)
        )
        skip_reason = "the daemon is not running" if daemon.error else None
    wanted = clients_to_attach(plan, merged.clients)
    for each in plan.settings(merged.clients):
        reason = skip_reason if each in wanted else "not asked for; its settings stay as they are"
        if reason is not None:
            message, command = f"{each.name}: {reason}", f"hyp client attach {each.name}"
            runner.add(SetupStep("attach", "skipped", message, (command,), facts={"client": each.name}))
    if skip_reason is None:
        for step in attach_clients(plan, wanted, merged.config.gateway.listen, dry_run=dry_run):
            runner.add(step)
    overview = None
    if not (dry_run or engine.error):
        try:
            overview = read_overview(plan.home, listener)
        except Cancelled:
            raise
        except HypError as error:
            runner.add(SetupStep("overview", "failed", error.message, error.repair, error=error))
    return SetupResult(plan.home, dry_run, merged, tuple(runner.steps), overview)


class _StepRunner:
    """The steps so far. The listener hears of each when it is added."""

    def __init__(self, listener: SetupListener) -> None:
        self._listener = listener
        self.steps: list[SetupStep] = []

    def add(self, step: SetupStep) -> None:
        self.steps.append(step)
        self._listener.step(step)

    def attempt(self, name: str, work: Callable[[], SetupStep], later: tuple[str, ...]) -> SetupStep:
        """Run a step. If it fails, add a failed step with the commands that repair it and then do it later."""
        try:
            step = work()
        except Cancelled:
            raise
        except HypError as error:
            step = SetupStep(name, "failed", error.message, tuple(dict.fromkeys((*error.repair, *later))), error=error)
        except OSError as error:
            failure = Retryable(f"the {name} failed: {error}", kind=f"{name}_failed", repair=later)
            step = SetupStep(name, "failed", failure.message, later, error=failure)
        self.add(step)
        return step


def configure_home(plan: SetupPlan, *, dry_run: bool) -> tuple[MergedConfig, SetupStep]:
    """Write the config. Raise HypError if the config or the home cannot be created; then no other step runs."""
    merged = merge_config(plan.home, plan.choices, plan.found, plan.now)
    if dry_run:
        reject_network_file_system(plan.home.root)
        plans = {"path": str(merged.path), "diff": merged.diff}
        if not merged.is_changed:
            return merged, SetupStep("config", "unchanged", f"{merged.path} would stay unchanged", facts=plans)
        notes = (f"the previous version would be kept as {merged.path}.bak-<time>",) if merged.changes else ()
        return merged, SetupStep("config", "would", f"{merged.path} would be written", notes=notes, facts=plans)
    read_identity(plan.home)
    try:
        merged, backup = write_config(plan.home, plan.choices, plan.found, plan.now)
    except OSError as error:
        raise Retryable(f"cannot write {plan.home.config}: {error}", kind="config_unwritable") from error
    facts = {"path": str(merged.path), "backup": str(backup) if backup else None}
    if not merged.is_changed:
        return merged, SetupStep("config", "unchanged", f"{merged.path} is unchanged", facts=facts)
    notes = (f"the previous version is in {backup}",) if backup else ()
    return merged, SetupStep("config", "done", f"{merged.path} written", notes=notes, facts=facts)


def install_engine(plan: SetupPlan, listener: SetupListener) -> SetupStep:
    """Download the jars. The class archive for faster starts is built in the background of the first start."""
    found = jvm.find_java()
    fetched = jars.install_jars(plan.cache, listener.progress)
    message = f"jars in {fetched.paths[0].parent}, Java {found.version}"
    return SetupStep("engine", "done" if fetched.fetched else "unchanged", message, facts={"java": found.version})


def _planned_engine(plan: SetupPlan) -> SetupStep:
    commands: tuple[str, ...] = ()
    try:
        java_status = f"Java {jvm.find_java().version}"
    except HypError as error:
        java_status, commands = error.message, error.repair
    try:
        jars.find_installed_jars(plan.cache)
    except HypError:
        locked = jars.locked_jars()
        size = format_size(sum(jar.size for jar in locked))
        message = f"{len(locked)} jars ({size}) would be downloaded to {plan.cache}; {java_status}"
        return SetupStep("engine", "would", message, commands)
    return SetupStep("engine", "unchanged", f"jars are installed; {java_status}", commands)


def import_history(plan: SetupPlan, merged: MergedConfig, listener: SetupListener, *, dry_run: bool) -> SetupStep:
    """Import the history of the chosen clients, if the user agreed."""
    request = build_request(plan, merged.config, merged.clients)
    if request is None:
        none_found = "no client found on this machine"
        why = none_found if plan.choices.clients is None else "no chosen client keeps history"
        return SetupStep("import", "skipped", why, ("hyp backfill list",))
    args = request.args
    with _import_span(plan, args, dry_run=dry_run, consent=plan.choices.imports) as span:
        if not plan.choices.imports:
            span.set(providers_run=0, rows_written=0)
            span.status("skipped")
            return SetupStep("import", "skipped", "declined", ("hyp backfill",))
        if dry_run:
            report = backfill_dry_run.run_dry(
                plan.home,
                merged.config,
                args,
                lambda message, done, total, facts: listener.progress(message, done, total, **facts),
            )
        else:
            engine = client.choose_engine(plan.home, merged.config)
            report = client.run_job(engine, "backfill", args, listener.event)
        error = find_failure(report, args["providers"])
        rows = sum(each["rows_written"] for each in report["providers"])
        span.set(providers_run=len(report["providers"]), rows_written=rows)
        span.status("failed" if error else "ok")
    facts: dict[str, Any] = {"backfill": report}
    if error:
        return SetupStep("import", "failed", error.message, ("hyp backfill",), facts=facts, error=error)
    sessions = sum(each["sessions_seen"] for each in report["providers"])
    imported = f"{format_count(rows, 'row')} of {format_count(sessions, 'session')}"
    if dry_run:
        names = [each.name for each in request.selection.chosen]
        since = datetime.fromisoformat(request.window.since) if request.window.since else None
        size = sum(each.estimate(since).bytes for each in plan.found if each.name in names)
        message = f"{imported} would be imported; {size:,} bytes would be read" if size else "nothing new"
        return SetupStep("import", "would" if rows else "unchanged", message, facts={**facts, "bytes": size})
    return SetupStep("import", "done" if rows else "unchanged", imported if rows else "nothing new", facts=facts)


def record_cancelled_consent(plan: SetupPlan, clients: Sequence[str], config: Config) -> None:
    """Record in telemetry that the user cancelled at the question about the import."""
    if (request := build_request(plan, config, clients)) is not None:
        with _import_span(plan, request.args, dry_run=False, consent=False, consent_cancelled=True) as span:
            span.set(providers_run=0, rows_written=0)
            span.status("cancelled")


def build_request(plan: SetupPlan, config: Config, clients: Sequence[str]) -> ImportRequest | None:
    """Return the import request, or None if none of the clients keeps history."""
    providers = load_providers()
    names = [name for name in clients if providers.get(name)]
    if not names:
        return None
    until = plan.now.isoformat()
    return parse_request(plan.home, config, providers, names=names, until=until, now=plan.now, variables=plan.variables)


def _import_span(
    plan: SetupPlan, args: Mapping[str, Any], *, dry_run: bool, consent: bool, consent_cancelled: bool = False
) -> telemetry.Span:
    return telemetry.span(
        "walkthrough.backfill",
        component="walkthrough",
        provider_count=len(args["providers"]),
        providers=",".join(args["providers"]),
        dry_run=dry_run,
        interactive=plan.choices.interactive,
        consent=consent,
        consent_cancelled=consent_cancelled,
        retention_days=args["retention_days"],
        until=args["until"],
    )


def start_daemon(plan: SetupPlan, clients: Sequence[str], *, dry_run: bool) -> SetupStep:
    """Start the daemon, if it is not running. If it has clients to follow, install it where that is possible.

    After a reboot nothing is followed without it, and an attached client cannot reach its provider.
    """
    home, notes = plan.home, tuple[str, ...]()
    is_installed = lifecycle.find_installed_service(home) is not None
    before = daemon_process.running_daemon(home)
    follows = f"; follows {', '.join(clients)}" if clients else ""
    if not is_installed and clients:
        if (reason := lifecycle.find_supervisor(home).unavailable_reason()) is None:
            if dry_run:
                return SetupStep("daemon", "would", f"would be started now and with every login{follows}")
            try:
                pid = lifecycle.install_service(home)
                message = f"running as process {pid}, and starts with every login{follows}"
                hints = tuple(lifecycle.service_hints(home))
                return SetupStep("daemon", "done", message, notes=hints, facts={"pid": pid, "installed": True})
            except (HypError, OSError) as error:
                reason = summarize_error(error)
        notes = (f"it does not start with this machine: {reason}",)
    if before is None and dry_run:
        return SetupStep("daemon", "would", f"would be started{follows}", notes=notes)
    pid = before if dry_run and before else lifecycle.start_daemon(home, lifecycle.PATIENT_SECONDS)
    facts = {"pid": pid, "installed": is_installed}
    if pid == before:
        return SetupStep("daemon", "unchanged", f"already running as process {pid}{follows}", notes=notes, facts=facts)
    return SetupStep("daemon", "done", f"running as process {pid}{follows}", notes=notes, facts=facts)


def clients_to_attach(plan: SetupPlan, clients: Sequence[str]) -> list[ClientSettings]:
    """Return the clients that the user asked to attach, and those that are attached, which may need a repair."""
    return [
        each for each in plan.settings(clients) if plan.choices.attach or read_record(plan.home, each.name) is not None
    ]


def attach_clients(
    plan: SetupPlan, settings: Sequence[ClientSettings], listen: str, *, dry_run: bool
) -> Iterator[SetupStep]:
    """Attach each client and yield a step for it. A failure does not affect the other clients."""
    problem = _find_gateway_problem(plan, listen, dry_run) if settings else None
    for each in settings:
        later = (f"hyp client attach {each.name}",)
        if problem is not None:
            # Of a dry run it is only a step that would be skipped: the dry run itself has not failed.
            error = None if dry_run else problem
            yield _client_step(each, "skipped" if dry_run else "failed", problem, (*problem.repair, *later), error)
            continue
        try:
            result = attach_client(plan.home, each, gateway_url(listen), plan.variables, dry_run=dry_run)
            yield _attached_step(result, dry_run)
            if not dry_run:
                handover.wait_for_fallback(plan.home)
        except HypError as error:
            yield _client_step(each, "failed", error, error.repair if dry_run else (*error.repair, *later), error)


def _find_gateway_problem(plan: SetupPlan, listen: str, dry_run: bool) -> NotReady | None:
    """Return None once the gateway of this home answers, or the reason why nothing can be attached."""
    try:
        url = gateway_url(listen)
    except NotReady as error:
        return error
    deadline = time.monotonic() + _GATEWAY_SECONDS
    while not dry_run and probe_gateway(plan.home, url) != "gateway":
        reported = daemon_process.read_daemon_status(plan.home).get("gateway") or {}
        is_down = reported.get("state") == "down" and reported.get("listen") == listen
        if is_down or daemon_process.running_daemon(plan.home) is None or time.monotonic() > deadline:
            return gateway_unreachable(plan.home, listen, reported.get("error") if is_down else None)
        time.sleep(_POLL_SECONDS)
    return None


def _attached_step(result: AttachResult, dry_run: bool) -> SetupStep:
    facts: dict[str, object] = {"client": result.client, "path": str(result.path), "base_url": result.base_url}
    status: StepStatus = "unchanged"
    message = f"{result.client} is already attached to the gateway at {result.base_url} ({result.path})"
    if result.changed and dry_run:
        status, facts["diff"] = "would", result.diff
        message = f"{result.client} would be attached to the gateway at {result.base_url}; {result.path} would change"
    elif result.changed:
        status, message = "done", f"{result.client} is attached to the gateway at {result.base_url} ({result.path})"
    notes = tuple(result.notes)
    if result.upstream:
        notes = (f"the gateway forwards to the address it called before, {result.upstream}", *notes)
    return SetupStep("attach", status, message, notes=notes, facts=facts)


def _client_step(
    settings: ClientSettings, status: StepStatus, problem: HypError, commands: Sequence[str], error: HypError | None
) -> SetupStep:
    message = f"{settings.name}: {problem.message}"
    return SetupStep("attach", status, message, tuple(commands), facts={"client": settings.name}, error=error)


def read_overview(home: Home, listener: SetupListener) -> dict[str, Any] | None:
    """Bring the index up to date, however long that takes, and return the overview; None if nothing is recorded."""
    from hypaware.index.filters import make_filters
    from hypaware.index.overview import summarize_overview
    from hypaware.index.prices import load_prices
    from hypaware.index.refresh import refresh_index
    from hypaware.index.store import open_index

    with suppress(BlockingIOError):  # another process does the same, and the overview shows what it has done
        refresh_index(home, on_progress=lambda done, rows: listener.progress(f"indexing: {done:,} of {rows:,} rows"))
    with open_index(home) as index:
        found = summarize_overview(index, make_filters(), load_prices(home))
    return found if found["totals"]["parts"] else None
