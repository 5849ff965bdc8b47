"""A set-up from its first step to its last, for real or as a dry run.

Without a config nothing goes on. After that each step runs that does not need one which failed: the import needs the
engine, attaching needs the daemon. What was done stays done, and running it again does the rest.
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
        """The report of the import, as `hyp backfill` gives it."""
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


def perform(plan: Plan, heard: Listener) -> Result:
    steps = _Steps(heard)
    made, first = doing.configure(plan)
    steps.add(first)
    engine = steps.attempt("engine", lambda: doing.install_engine(plan, heard), later=("hyp engine install",))
    if engine.error and plan.choices.imports:
        steps.add(Step("import", "skipped", "it needs the engine", ("hyp backfill",)))
    else:
        steps.attempt("import", lambda: doing.import_history(plan, made, heard), later=("hyp backfill",))
    if not plan.choices.daemon:
        steps.add(Step("daemon", "skipped", "not wanted", ("hyp daemon start",)))
        why_not: str | None = "without a daemon nothing would listen"
    else:
        daemon = steps.attempt("daemon", lambda: doing.start_daemon(plan), later=("hyp daemon start",))
        why_not = "the daemon does not run" if daemon.error else None if plan.choices.attach else "not wanted"
    if why_not is None:
        steps.add_each(attaching.attach_clients(plan, made.clients, made.config.gateway.listen))
    else:
        steps.add_each(attaching.skip_clients(plan, made.clients, why_not))
    overview = None
    if not engine.error:
        try:
            overview = doing.overview(plan, made.config, heard)
        except Cancelled:
            raise
        except HypError as error:
            steps.add(Step("overview", "failed", error.message, error.repair, error=error))
    return Result(plan.home, False, made, tuple(steps.taken), overview)


def foretell(plan: Plan, heard: Listener) -> Result:
    steps = _Steps(heard)
    made, first = foretelling.configure(plan)
    steps.add_each((first, foretelling.install_engine(plan)))
    steps.attempt("import", lambda: foretelling.import_history(plan, made, heard), later=("hyp backfill --dry-run",))
    if not plan.choices.daemon:
        steps.add(Step("daemon", "skipped", "not wanted"))
    else:
        steps.add(foretelling.start_daemon(plan))
    if plan.choices.attaches:
        steps.add_each(attaching.foretell_clients(plan, made.clients, made.config.gateway.listen))
    else:
        steps.add_each(attaching.skip_clients(plan, made.clients, "not wanted"))
    return Result(plan.home, True, made, tuple(steps.taken))


class _Steps:
    """What was taken so far; each is told when it is taken."""

    def __init__(self, heard: Listener) -> None:
        self._heard = heard
        self.taken: list[Step] = []

    def add(self, step: Step) -> None:
        self.add_each([step])

    def add_each(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.taken.append(step)
            self._heard.step(step)

    def attempt(self, name: str, work: Callable[[], Step], later: tuple[str, ...]) -> Step:
        """The step, or its failure: with what mends it, and then the command that does it later."""
        try:
            step = work()
        except Cancelled:
            raise
        except HypError as error:
            step = Step(name, "failed", error.message, tuple(dict.fromkeys((*error.repair, *later))), error=error)
        except OSError as error:
            trouble = Retryable(f"the {name} failed: {error}", kind=f"{name}_failed", repair=later)
            step = Step(name, "failed", trouble.message, later, error=trouble)
        self.add(step)
        return step
