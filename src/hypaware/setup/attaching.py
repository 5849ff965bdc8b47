"""Points the chosen clients at the gateway: first somebody who answers, then the client that calls."""

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

# The daemon is up when this is asked; its gateway may need a moment more.
_GATEWAY_SECONDS = 10.0
_POLL_SECONDS = 0.05


def attach_clients(plan: Plan, chosen: tuple[str, ...], listen: str) -> Iterator[Step]:
    """A step for each client; one whose settings cannot be changed does not hold the others."""
    settings = plan.settings(chosen)
    silent = _waited_for(plan, listen) if settings else None
    for each in settings:
        try:
            if silent is not None:
                raise silent
            yield _done(attach.attach(plan.home, each, gateway_url(listen), plan.variables))
            handover.stands_by(plan.home)
        except HypError as error:
            yield _failed(each, error, (*error.repair, _later(each)))


def skip_clients(plan: Plan, chosen: tuple[str, ...], why: str) -> Iterator[Step]:
    for each in plan.settings(chosen):
        yield Step("attach", "skipped", f"{each.name}: {why}", (_later(each),), facts={"client": each.name})


def foretell_clients(plan: Plan, chosen: tuple[str, ...], listen: str) -> Iterator[Step]:
    try:
        gateway_url(listen)
    except NotReady as error:
        # Told, with what mends it, as what else would be missing: a dry run itself has not failed.
        for each in plan.settings(chosen):
            said = f"{each.name}: {error.message}"
            yield Step("attach", "skipped", said, (*error.repair, _later(each)), facts={"client": each.name})
        return
    for each in plan.settings(chosen):
        try:
            yield _foretold(attach.attach(plan.home, each, gateway_url(listen), plan.variables, dry_run=True))
        except HypError as error:
            yield _failed(each, error, error.repair)


def _waited_for(plan: Plan, listen: str) -> NotReady | None:
    """None when the gateway of this home answers; else why nothing can be attached."""
    try:
        url = gateway_url(listen)
    except NotReady as error:
        return error
    deadline = time.monotonic() + _GATEWAY_SECONDS
    while asked(plan.home, url) != "gateway":
        told = condition.read(plan.home).get("gateway") or {}
        is_down = told.get("state") == "down" and told.get("listen") == listen
        if is_down or instance.running(plan.home) is None or time.monotonic() > deadline:
            return not_answering(plan.home, listen, told.get("error") if is_down else None)
        time.sleep(_POLL_SECONDS)
    return None


def _done(outcome: Outcome) -> Step:
    said = f"{outcome.client} goes through the gateway at {outcome.base_url} ({outcome.path})"
    status: Status = "done" if outcome.changed else "unchanged"
    return Step("attach", status, said, notes=_notes(outcome), facts=_facts(outcome))


def _foretold(outcome: Outcome) -> Step:
    if not outcome.changed:
        said = f"{outcome.client} goes through the gateway already ({outcome.path})"
        return Step("attach", "unchanged", said, notes=_notes(outcome), facts=_facts(outcome))
    said = f"{outcome.client} would go through the gateway at {outcome.base_url}; {outcome.path} would change"
    return Step("attach", "would", said, notes=_notes(outcome), facts={**_facts(outcome), "diff": outcome.diff})


def _failed(client: Settings, error: HypError, later: tuple[str, ...]) -> Step:
    return Step(
        "attach", "failed", f"{client.name}: {error.message}", later, facts={"client": client.name}, error=error
    )


def _notes(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.upstream:
        return outcome.notes
    return (f"what it called before, {outcome.upstream}, stays in the way behind the gateway", *outcome.notes)


def _facts(outcome: Outcome) -> dict[str, object]:
    return {"client": outcome.client, "path": str(outcome.path), "base_url": outcome.base_url}


def _later(client: Settings) -> str:
    return f"hyp client attach {client.name}"
