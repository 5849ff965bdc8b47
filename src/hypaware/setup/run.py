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
from hypaware.setup import steps
from hypaware.setup.config import MergedConfig
from hypaware.setup.plan import SetupListener, SetupPlan, SetupStep


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
    merged, first = steps.configure_home(plan, dry_run=dry_run)
    runner.add(first)
    engine = runner.attempt(
        "engine", lambda: steps.install_engine(plan, listener, dry_run=dry_run), later=("hyp engine install",)
    )
    if engine.error and plan.choices.imports:
        runner.add(SetupStep("import", "skipped", "requires the engine", ("hyp backfill",)))
    else:
        runner.attempt(
            "import",
            lambda: steps.import_history(plan, merged, listener, dry_run=dry_run),
            later=("hyp backfill --dry-run" if dry_run else "hyp backfill",),
        )
    if not plan.choices.daemon:
        runner.add(SetupStep("daemon", "skipped", "declined", () if dry_run else ("hyp daemon start",)))
        skip_reason: str | None = "requires the daemon"
    else:
        daemon = runner.attempt(
            "daemon", lambda: steps.start_daemon(plan, dry_run=dry_run), later=("hyp daemon start",)
        )
        skip_reason = "the daemon is not running" if daemon.error else None if plan.choices.attach else "declined"
    if skip_reason is None:
        runner.add_each(steps.attach_clients(plan, merged, dry_run=dry_run))
    else:
        runner.add_each(steps.skip_attach(plan, merged.clients, skip_reason))
    overview = None
    if not (dry_run or engine.error):
        try:
            overview = steps.read_overview(plan, merged.config, listener)
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
        self.add_each([step])

    def add_each(self, steps: Iterable[SetupStep]) -> None:
        for step in steps:
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
