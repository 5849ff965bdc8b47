"""A made-up month of work in five projects, for tests and pictures of the page: Claude Code transcripts and Codex rows.

`write_history` writes the transcripts, `make_page_home` imports them without Spark. The same time gives the same
history. Known things to find in it are constants.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from hypaware.home import Home
from hypaware.index.store import open_index
from hypaware.state.home_opener import open_home
from tests.support import light_home

OPUS, SONNET, HAIKU, CODEX = "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "gpt-6.1-sol"
YESTERDAYS = "Customers are charged twice at checkout. Find out why and fix it."
"""The prompt of the newest session, which ended yesterday before noon, in the project that costs most."""
COSTLIEST = "shop"
ERROR = "connect ECONNREFUSED 127.0.0.1:5432"
"""The output of a failed tool call in exactly three sessions."""
BROKEN = (
    "Run the migration tests against the new schema",
    "Why does the nightly report stop after an hour?",
    "Set up the staging database for the loyalty points",
)
"""The prompts of those three."""
FOLDER = "/home/dev"
_SHARES = {COSTLIEST: 9, "billing": 4, "search-api": 3, "mobile": 3, "website": 2}
_PROMPTS = (
    "Add a voucher field to the cart and validate it on the server",
    "The price filter ignores the currency, please fix",
    "Write tests for the refund flow",
    "Upgrade to the new payment SDK and remove the old client",
    "Make the product list load faster",
    "Explain how sessions expire and where that is configured",
    "Extract the tax rules into a module of their own",
    "Why is this test flaky? Find the race and fix it",
    "Add pagination to the orders endpoint",
    "Translate the error messages into German and Dutch",
    "Review the diff on this branch before I open a pull request",
    "Replace the cron job with a queue worker",
    "Add an index for the slow query in the log",
    "Show stock levels on the product page",
    "Clean up the feature flags that are always on",
    "Write the release notes for 4.2",
)
_ANSWERS = (
    "Done. The change is small: one function moved, two call sites changed, and a test for the empty case.",
    "I found the cause. The value is read **before** the lock is taken, so two requests can see the same state.",
    "All 214 tests pass. I left the public names as they were, so nothing else has to change.",
    "There are three places that do this today. I kept the one in `pricing/rules.py` and removed the others.",
)
_TOOLS = ("Bash", "Bash", "Bash", "Read", "Read", "Grep", "Edit", "Write")
_ERROR_SHARE = {"Bash": 0.09, "Edit": 0.05, "Read": 0.02, "Grep": 0.01, "Write": 0.01}


@dataclass
class MadeUpSession:
    """A transcript of Claude Code, written line by line."""

    project: str
    start: datetime
    rng: Random
    model: str = OPUS
    agent: str | None = None
    session: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = self.start
        self.session = self.session or self._uuid()
        self._context = 14_000
        self._message: dict[str, Any] = {}

    def asks(self, text: str) -> None:
        self._pass(5, 240)
        self._message = {}
        self._add("user", {"role": "user", "content": text}, promptSource="typed")

    def thinks(self, text: str) -> None:
        self._says({"type": "thinking", "thinking": text, "signature": "c2lnbmVk"}, output=260)

    def says(self, text: str, output: int | None = None) -> None:
        self._says({"type": "text", "text": text}, output=output or 30 + len(text) // 3)
        self._message = {}

    def uses(self, tool: str, result: Any, *, failed: bool = False, told: Any = None, **arguments: Any) -> None:
        """Write a call and its result."""
        self.receives(self.calls(tool, **arguments), result, failed=failed, told=told)

    def calls(self, tool: str, **arguments: Any) -> str:
        """Write a call and return its id."""
        call = "toolu_01" + self._uuid().replace("-", "")[:22]
        self._says({"type": "tool_use", "id": call, "name": tool, "input": arguments}, output=140)
        self._message = {}
        return call

    def receives(self, call: str, result: Any, *, failed: bool = False, told: Any = None) -> None:
        self._pass(1, 20)
        block = {"type": "tool_result", "tool_use_id": call, "content": result, "is_error": failed}
        self._add("user", {"role": "user", "content": [block]}, toolUseResult=told if told is not None else result)

    def edits(self, path: str, old: str, new: str) -> None:
        name = f"{FOLDER}/{self.project}/{path}"
        lines = [*(f"-{each}" for each in old.splitlines()), *(f"+{each}" for each in new.splitlines())]
        hunk = {"oldStart": 41, "oldLines": old.count("\n") + 1, "newStart": 41, "newLines": new.count("\n") + 1}
        told = {"filePath": name, "oldString": old, "newString": new, "structuredPatch": [{**hunk, "lines": lines}]}
        done = f"The file {name} has been updated."
        self.uses("Edit", done, told=told, file_path=name, old_string=old, new_string=new)

    def works(self, steps: int) -> None:
        """Write ordinary tool calls, some of which fail."""
        for _ in range(steps):
            tool = self.rng.choice(_TOOLS)
            failed = self.rng.random() < _ERROR_SHARE[tool]
            path = f"{FOLDER}/{self.project}/src/{self.rng.choice(('cart', 'orders', 'pricing', 'session'))}.py"
            arguments = {"command": "make test 2>&1 | tail -3"} if tool == "Bash" else {"file_path": path}
            self.uses(tool, "exit status 1" if failed else "214 passed in 3.1s", failed=failed, **arguments)

    def write(self, folder: Path) -> None:
        """Write the transcript below a folder of Claude Code."""
        path = folder / "projects" / f"{FOLDER}/{self.project}".replace("/", "-") / f"{self.session}.jsonl"
        if self.agent is not None:
            path = path.with_suffix("") / "subagents" / f"agent-{self.agent}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.meta:
            path.with_suffix(".meta.json").write_text(json.dumps(self.meta), encoding="utf-8")
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")
        os.utime(path, (self.now.timestamp(), self.now.timestamp()))

    def _says(self, block: dict[str, Any], *, output: int) -> None:
        self._pass(2, 25)
        if not self._message:
            written = self.rng.randint(400, 5_000)
            usage = {"input_tokens": self.rng.randint(3, 40), "cache_creation_input_tokens": written}
            usage |= {"cache_read_input_tokens": self._context, "output_tokens": output}
            self._context = (self._context + written) % 170_000
            self._message = {"id": f"msg_{self._uuid()}", "model": self.model, "usage": usage}
        self._add("assistant", {"role": "assistant", "content": [block], **self._message})

    def _add(self, kind: str, message: dict[str, Any], **more: Any) -> None:
        self.lines.append(
            {
                "parentUuid": self.lines[-1]["uuid"] if self.lines else None,
                "isSidechain": self.agent is not None,
                **({"agentId": self.agent} if self.agent else {}),
                "type": kind,
                "message": message,
                "uuid": self._uuid(),
                "timestamp": self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "cwd": f"{FOLDER}/{self.project}",
                "sessionId": self.session,
                "version": "2.1.325",
                "gitBranch": "main",
                **more,
            }
        )

    def _pass(self, least: int, most: int) -> None:
        self.now += timedelta(seconds=self.rng.uniform(least, most))

    def _uuid(self) -> str:
        return str(UUID(int=self.rng.getrandbits(128), version=4))


def make_page_home(home: Home, folder: Path, now: datetime | None = None) -> Home:
    """Import the history into a new home, without Spark, and build its index."""
    now = now or datetime.now(UTC)
    open_home(home).store.close()
    write_history(folder, now)
    report = light_home.import_history(home, {"CLAUDE_CONFIG_DIR": str(folder), "HOME": "/nonexistent"})
    assert report.error is None, report.error
    light_home.append(home, codex_rows(now))
    open_index(home).close()
    return home


def write_history(folder: Path, now: datetime, *, days: int = 35) -> None:
    """Write transcripts of sessions on the days before `now`: fewer at weekends, none at night, one yesterday."""
    rng = Random(7)
    noon = now.astimezone(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    for before in range(days, 1, -1):
        day = noon - timedelta(days=before)
        for _ in range(rng.randint(0, 1) if day.weekday() >= 5 else rng.randint(2, 6)):
            _ordinary_session(rng, day + timedelta(hours=rng.triangular(-5, 8, -1))).write(folder)
    for before in (20, 13, 6, 4, 2):
        _long_session(rng, noon - timedelta(days=before, hours=4)).write(folder)
    for before, prompt in zip((16, 9, 3), BROKEN, strict=True):
        _broken_session(rng, noon - timedelta(days=before, hours=2), prompt).write(folder)
    for session in _yesterdays_session(rng, noon - timedelta(days=1, minutes=40)):
        session.write(folder)


def codex_rows(now: datetime) -> list[dict[str, Any]]:
    """Return rows of a few sessions of Codex, as a producer sends them."""
    rows: list[dict[str, Any]] = []
    for number, prompt in enumerate(_PROMPTS[:6]):
        start = now.astimezone(UTC) - timedelta(days=5 * number + 2, hours=number)
        texts = [("user", prompt), ("assistant", _ANSWERS[number % 4])]
        for place, (role, text) in enumerate(texts):
            usage = {"input_tokens": 9_000, "cache_read_tokens": 60_000, "output_tokens": 900}
            rows.append(
                {
                    "session_id": f"01a1de10-0000-7000-8000-00000000000{number}",
                    "provider": "openai",
                    "client_name": "codex",
                    "model": CODEX if role == "assistant" else None,
                    "cwd": f"{FOLDER}/{list(_SHARES)[number % 5]}",
                    "conversation_started_at": start.isoformat(),
                    "message_id": f"codex-{number}-{place}",
                    "message_index": place,
                    "message_created_at": (start + timedelta(minutes=3 * place)).isoformat(),
                    "role": role,
                    "provider_type": role,
                    "part_index": 0,
                    "part_type": "text",
                    "content_text": text,
                    "attributes": {"client": {}, **({"usage": usage} if role == "assistant" else {})},
                }
            )
    return rows


def _ordinary_session(rng: Random, start: datetime) -> MadeUpSession:
    project = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    model = rng.choices((OPUS, SONNET, HAIKU), (5, 3, 1))[0]
    session = MadeUpSession(project, start, rng, model)
    for _ in range(rng.randint(1, 4)):
        session.asks(rng.choice(_PROMPTS))
        session.works(rng.randint(2, 14 if project == COSTLIEST else 8))
        session.says(rng.choice(_ANSWERS))
    return session


def _long_session(rng: Random, start: datetime) -> MadeUpSession:
    session = MadeUpSession(COSTLIEST, start, rng)
    for prompt in rng.sample(_PROMPTS, 5):
        session.asks(prompt)
        session.works(15)
        session.says(rng.choice(_ANSWERS))
    return session


def _broken_session(rng: Random, start: datetime, prompt: str) -> MadeUpSession:
    session = MadeUpSession("billing", start, rng, SONNET)
    session.asks(prompt)
    session.uses("Bash", f"Error: {ERROR}\n    at TCPConnectWrap.afterConnect", failed=True, command="npm run migrate")
    session.says("The database is not running. Start it with `docker compose up -d db`, then run this again.")
    return session


def _yesterdays_session(rng: Random, start: datetime) -> list[MadeUpSession]:
    session = MadeUpSession(COSTLIEST, start, rng)
    session.asks(YESTERDAYS)
    session.thinks("Two charges for one order. Either the client submits twice or the handler is not idempotent.")
    session.says("I'll look at the checkout handler first, and at what happens when the button is pressed twice.")
    session.uses(
        "Grep",
        "src/checkout/handler.py:41:    charge = gateway.charge(order.total, order.card)\n"
        "src/checkout/retry.py:17:        return self.handler.submit(order)",
        pattern="gateway.charge|submit\\(",
        path="src",
    )
    task = "List every caller of submit() and say whether it can run twice for one order."
    call = session.calls("Agent", description="Find callers of submit()", prompt=task, subagent_type="Explore")
    agent = MadeUpSession(COSTLIEST, session.now, rng, HAIKU, agent="a2e26e2a0945d8861", session=session.session)
    agent.meta = {"agentType": "Explore", "description": "Find callers of submit()", "toolUseId": call}
    agent.asks(task)
    agent.uses("Read", "class Retry:\n    attempts = 3", file_path=f"{FOLDER}/shop/src/checkout/retry.py")
    agent.says("`Retry.run` calls `submit()` up to three times, also after a timeout of the gateway.")
    session.now = agent.now
    found = agent.lines[-1]["message"]["content"]
    session.receives(call, found, told={"status": "completed", "agentId": agent.agent, "content": found})
    session.says(
        "That is the cause: a timeout does **not** mean that the charge failed, yet it is sent again.\n\n"
        "| step | before | after |\n|---|---|---|\n| first try | charge | charge with a key |\n"
        "| retry | *second* charge | same key, same charge |\n\n"
        '```python\nkey = f"order-{order.id}"\ncharge = gateway.charge(order.total, order.card, key=key)\n```'
    )
    session.edits(
        "src/checkout/handler.py",
        "    charge = gateway.charge(order.total, order.card)\n    order.paid = True",
        "    # The gateway charges once per key, however often it is asked.\n"
        '    key = f"order-{order.id}"\n'
        "    charge = gateway.charge(order.total, order.card, key=key)\n    order.paid = charge.accepted",
    )
    session.uses(
        "Bash",
        "FAILED tests/test_checkout.py::test_declined_card - assert order.paid is False\n1 failed, 18 passed in 2.4s",
        failed=True,
        command="pytest -q tests/test_checkout.py",
    )
    session.says("One test expected the old behaviour for a declined card. I'll bring the refusal back.")
    session.edits(
        "src/checkout/handler.py",
        "    order.paid = charge.accepted",
        "    order.paid = charge.accepted\n    if not charge.accepted:\n        raise Declined(charge.reason)",
    )
    session.uses("Bash", "19 passed in 2.2s", command="pytest -q tests/test_checkout.py")
    session.asks("Good. Add a test that submits the same order twice.")
    session.uses("Bash", "20 passed in 2.3s", command="pytest -q tests/test_checkout.py")
    session.says("Done: `test_one_order_is_charged_once` submits the order three times and finds one charge.")
    return [session, agent]
