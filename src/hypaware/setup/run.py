"""Run all steps of a setup, for real or as a dry run.

Without a config no other step runs. After that, every step runs unless it depends on one that failed: the import needs
the engine, and attaching needs the daemon. Completed steps are kept; another run does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.home import Home
from hypaware.setup import attaching, doing, foretelling
from hypaware.setup.configuring import Configured
from hypaware.setup.plan import Listener, Plan, Step


@dataclass(frozen=True)
class Result:
    home: Home
    dry_run: bool
    configured: Configured
    steps: tuple[Step, ...]
    overview: dict[str, Any] | None = None

    @property
    def failed(self) -> list[Step]:
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
            "clients": list(self.configured.clients),
            "steps": steps,
            "backfill": self.backfill,
            "overview": self.overview,
        }


def perform(plan: Plan, listener: Listener) -> Result:
    """Run all steps."""
    steps = _Steps(listener)
    made, first = doing.configure(plan)
    steps.add(first)
    engine = steps.attempt("engine", lambda: doing.install_engine(plan, listener), later=("hyp engine install",))
    if engine.error and plan.choices.imports:
        steps.add(Step("import", "skipped", "requires the engine", ("hyp backfill",)))
    else:
        steps.attempt("import", lambda: doing.import_history(plan, made, listener), later=("hyp backfill",))
    if not plan.choices.daemon:
        steps.add(Step("daemon", "skipped", "declined", ("hyp daemon start",)))
        skip_reason: str | None = "requires the daemon"
    else:
        daemon = steps.attempt("daemon", lambda: doing.start_daemon(plan), later=("hyp daemon start",))
        skip_reason = "the daemon is not running" if daemon.error else None if plan.choices.attach else "declined"
    if skip_reason is None:
        steps.add_each(attaching.attach_clients(plan, made.clients, made.config.gateway.listen))
    else:
        steps.add_each(attaching.skip_clients(plan, made.clients, skip_reason))
    overview = None
    if not engine.error:
        try:
            overview = doing.overview(plan, made.config, listener)
        except Cancelled:
            raise
        except HypError as error:
            steps.add(Step("overview", "failed", error.message, error.repair, error=error))
    return Result(plan.home, False, made, tuple(steps.taken), overview)


def foretell(plan: Plan, listener: Listener) -> Result:
    """Report what `perform` would do, without changing anything."""
    steps = _Steps(listener)
    made, first = foretelling.configure(plan)
    steps.add_each((first, foretelling.install_engine(plan)))
    steps.attempt("import", lambda: foretelling.import_history(plan, made, listener), later=("hyp backfill --dry-run",))
    if not plan.choices.daemon:
        steps.add(Step("daemon", "skipped", "declined"))
    else:
        steps.add(foretelling.start_daemon(plan))
    if plan.choices.attaches:
        steps.add_each(attaching.foretell_clients(plan, made.clients, made.config.gateway.listen))
    else:
        steps.add_each(attaching.skip_clients(plan, made.clients, "declined"))
    return Result(plan.home, True, made, tuple(steps.taken))


class _Steps:
    """The steps so far. The listener hears of each when it is added."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.taken: list[Step] = []

    def add(self, step: Step) -> None:
        self.add_each([step])

    def add_each(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.taken.append(step)
            self._listener.step(step)

    def attempt(self, name: str, work: Callable[[], Step], later: tuple[str, ...]) -> Step:
        """Run a step. If it fails, add a failed step with the commands that repair it and then do it later."""
        try:
            step = work()
        except Cancelled:
            raise
        except HypError as error:
            step = Step(name, "failed", error.message, tuple(dict.fromkeys((*error.repair, *later))), error=error)
        except OSError as error:
            failure = Retryable(f"the {name} failed: {error}", kind=f"{name}_failed", repair=later)
            step = Step(name, "failed", failure.message, later, error=failure)
        self.add(step)
        return step
