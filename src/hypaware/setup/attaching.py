"""The attach step of a setup: point the chosen clients at the gateway, once it answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hypaware.capture import handover
from hypaware.clients import attach
from hypaware.clients.attach import Outcome, Settings
from hypaware.clients.gateway_url import gateway_url, not_answering
from hypaware.clients.standing import asked
from hypaware.daemon import condition, instance
from hypaware.errors import HypError, NotReady
from hypaware.setup.plan import Plan, Status, Step

# The daemon is already running; its gateway may need a moment longer.
_GATEWAY_SECONDS = 10.0
_POLL_SECONDS = 0.05


def attach_clients(plan: Plan, chosen: tuple[str, ...], listen: str) -> Iterator[Step]:
    """Attach each client and yield a step for it. A failure does not affect the other clients."""
    settings = plan.settings(chosen)
    problem = _wait_for_gateway(plan, listen) if settings else None
    for each in settings:
        try:
            if problem is not None:
                raise problem
            yield _attached(attach.attach(plan.home, each, gateway_url(listen), plan.variables))
            handover.stands_by(plan.home)
        except HypError as error:
            yield _failed(each, error, (*error.repair, _attach_command(each)))


def skip_clients(plan: Plan, chosen: tuple[str, ...], why: str) -> Iterator[Step]:
    """Yield a skipped step for each client."""
    for each in plan.settings(chosen):
        yield Step("attach", "skipped", f"{each.name}: {why}", (_attach_command(each),), facts={"client": each.name})


def foretell_clients(plan: Plan, chosen: tuple[str, ...], listen: str) -> Iterator[Step]:
    """Yield the steps that `attach_clients` would take, without changing anything."""
    try:
        gateway_url(listen)
    except NotReady as error:
        # Report what is missing as a skipped step: the dry run itself has not failed.
        for each in plan.settings(chosen):
            message = f"{each.name}: {error.message}"
            commands = (*error.repair, _attach_command(each))
            yield Step("attach", "skipped", message, commands, facts={"client": each.name})
        return
    for each in plan.settings(chosen):
        try:
            yield _planned(attach.attach(plan.home, each, gateway_url(listen), plan.variables, dry_run=True))
        except HypError as error:
            yield _failed(each, error, error.repair)


def _wait_for_gateway(plan: Plan, listen: str) -> NotReady | None:
    """Return None once the gateway of this home answers, or the reason why nothing can be attached."""
    try:
        url = gateway_url(listen)
    except NotReady as error:
        return error
    deadline = time.monotonic() + _GATEWAY_SECONDS
    while asked(plan.home, url) != "gateway":
        reported = condition.read(plan.home).get("gateway") or {}
        is_down = reported.get("state") == "down" and reported.get("listen") == listen
        if is_down or instance.running(plan.home) is None or time.monotonic() > deadline:
            return not_answering(plan.home, listen, reported.get("error") if is_down else None)
        time.sleep(_POLL_SECONDS)
    return None


def _attached(outcome: Outcome) -> Step:
    message = f"{outcome.client} is attached to the gateway at {outcome.base_url} ({outcome.path})"
    status: Status = "done" if outcome.changed else "unchanged"
    return Step("attach", status, message, notes=_notes(outcome), facts=_facts(outcome))


def _planned(outcome: Outcome) -> Step:
    if not outcome.changed:
        message = f"{outcome.client} is already attached to the gateway ({outcome.path})"
        return Step("attach", "unchanged", message, notes=_notes(outcome), facts=_facts(outcome))
    message = f"{outcome.client} would be attached to the gateway at {outcome.base_url}; {outcome.path} would change"
    return Step("attach", "would", message, notes=_notes(outcome), facts={**_facts(outcome), "diff": outcome.diff})


def _failed(client: Settings, error: HypError, commands: tuple[str, ...]) -> Step:
    return Step(
        "attach", "failed", f"{client.name}: {error.message}", commands, facts={"client": client.name}, error=error
    )


def _notes(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.upstream:
        return outcome.notes
    return (f"the gateway forwards to the address it called before, {outcome.upstream}", *outcome.notes)


def _facts(outcome: Outcome) -> dict[str, object]:
    return {"client": outcome.client, "path": str(outcome.path), "base_url": outcome.base_url}


def _attach_command(client: Settings) -> str:
    return f"hyp client attach {client.name}"
