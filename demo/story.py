"""What the demo tells, chapter by chapter. Each expects what HypAware promises, and the first that fails ends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo import provider, telling, verdict
from demo.client import SESSION
from demo.stage import HYP, ROOT, History, Place, lay_out, wait_for
from demo.telling import bold, chapter, expect, explain, say
from tests.ports import held_port

LOST_ANSWER = "export.ship.after-answer"
QUESTION = "What is left to do for the second currency?"

SESSIONS = """SELECT min(date) AS day, client_name AS client, split_part(cwd, '/', -1) AS project,
       count(*) AS parts, count_if(part_type = 'tool_call') AS tool_calls,
       timestampdiff(SECOND, min(message_created_at), max(message_created_at)) AS seconds
FROM ai_gateway_messages GROUP BY session_id, client_name, cwd ORDER BY min(message_created_at) LIMIT 10"""
ERRORS = """SELECT date, client_name AS client, tool_name AS tool, left(content_text, 58) AS said
FROM ai_gateway_messages WHERE is_error ORDER BY message_created_at LIMIT 5"""
LIVE = f"""SELECT role, model, content_text FROM ai_gateway_messages
WHERE session_id = '{SESSION}' ORDER BY message_index"""
EACH_ONCE = """SELECT count(*) AS parts, count(DISTINCT part_id) AS different
FROM ai_gateway_messages"""

CONFIG = """version = 1
[gateway]
listen = "127.0.0.1:{port}"
[[gateway.upstreams]]
name = "stand-in"
base_url = "{provider}"
provider = "anthropic"
"""
# One's own history may be long, and the demo has two minutes.
LAST_DAYS = """[retention]
default_days = 30
"""


def tell(user: Place, server: Place, folder: Path, history: History) -> None:
    lay_out(user.user, history)
    with provider.serving() as address, held_port() as port:
        _prepare(user, address, port, history)
        _set_up(user, history)
        _ask(user)
        _work(user)
    _deliver(user, server, folder)


def judge(user: Place, server: Place, history: History) -> bool:
    chapter(
        "Do not take our word for it.",
        "`hyp verify` audits every promise on the data at hand. Then another program, PyIceberg, reads both lakes "
        "and compares them row by row.",
    )
    user.must("verify", "--deep")
    transcripts = verdict.parts_in(user.user.rglob("*.jsonl") if history == "sample" else ())
    found = verdict.judge(verdict.parts_at(user.home), verdict.parts_at(server.home), transcripts)
    say("")
    for what, number in _figures(found):
        say(f"   {what:<40}{number:>9,}")
    if found.holds:
        said = f"{bold('Verdict: it holds.')} Every row is in the lake once and at the server once, unchanged."
    else:
        said = f"{bold('Verdict: it does NOT hold.')} This is a bug."
    explain("", said)
    return found.holds


def _figures(found: verdict.Verdict) -> Iterator[tuple[str, int]]:
    if found.in_transcripts:
        yield f"parts in the {len(found.in_transcripts)} transcripts", sum(found.in_transcripts.values())
        yield "rows that the import made of them", sum(found.imported.values())
    yield "rows in the lake, with the live ones", found.in_lake
    yield "rows at the server", found.at_server
    yield "rows too many, in one or the other", found.twice
    yield "rows in one of them only", found.only_in_lake + found.only_at_server
    yield "rows that say something else there", found.different


def _prepare(user: Place, address: str, port: int, history: History) -> None:
    user.home.mkdir(mode=0o700)
    config = CONFIG.format(port=port, provider=address) + (LAST_DAYS if history == "own" else "")
    (user.home / "config.toml").write_text(config)
    say("", "A config of its own, so that the demo meets neither a daemon of yours nor a real provider:")
    say("", "   $ cat $HYP_HOME/config.toml", *(f"     {line}" for line in config.splitlines()))


def _set_up(user: Place, history: History) -> None:
    whose = "Seven sample sessions lie where Claude Code and Codex would have left them."
    if history == "own":
        whose = "Your own sessions of the last 30 days are imported; they are only read."
    chapter(
        "Set it up: one command.",
        whose,
        "It writes the config, imports the history, starts the daemon, and sends the clients through the gateway.",
    )
    user.must("setup", "--yes")
    explain("", "Import again, whenever you like: only what is new is read, and nothing is stored twice.")
    user.must("backfill")


def _ask(user: Place) -> None:
    chapter("Ask anything, in SQL.")
    user.must("query", "sql", SESSIONS)
    user.must("query", "sql", ERRORS)


def _work(user: Place) -> None:
    chapter(
        "Work as always.",
        "A stand-in for Claude Code asks a stand-in for its provider, at the address that its settings name now: the "
        "gateway. What passes is recorded, and durable within a second of the answer's end.",
    )
    words = ["python", "-m", "demo.client", QUESTION]
    answered = telling.perform(words, [sys.executable, *words[1:]], user.environment(), ROOT)
    expect(answered == 0, "a client works through the gateway")
    wait_for(lambda: _recorded(user) == 1, "what went through the gateway is recorded")
    user.must("query", "sql", LIVE, "--refresh", "always")
    user.must("status")
    explain(
        "",
        "And back: the clients' settings are what they were before. The daemon would also deliver by itself, by a "
        "schedule; here that is done by hand, so that you can watch it.",
    )
    user.must("client", "detach")
    user.must("daemon", "stop")


def _recorded(user: Place) -> int:
    return int(user.ask("daemon", "status")["gateway"]["recorded"])


def _deliver(user: Place, server: Place, folder: Path) -> None:
    chapter(
        "Deliver it to your team's server, with a kill -9 in the middle.",
        "The server is another home on this machine.",
    )
    token = folder / "token"
    telling.show([*server.setting, "hyp", "server", "token", "create", "--label", "demo"], f" > {token}")
    token.write_text(server.output("server", "token", "create", "--label", "demo"))
    with _serving(server, folder / "server.log") as url:
        user.must("config", "set", "sinks.team", f'{{ kind = "forward", url = "{url}", token_file = "{token}" }}')
        explain(
            "",
            "The engine gets SIGKILL at the worst moment: the server has stored rows and has said so, and nothing "
            "here has written that down.",
        )
        expect(user.run("export", crash_at=LOST_ANSWER) == 1, "the delivery was cut off")
        expect(user.ask("engine", "status")["state"] == "stopped", "the engine is dead")
        explain("", "The next round asks the server what it has, and sends the rest.")
        user.must("export")
        explain("", "One more round: there is nothing to send, so nothing is sent, and no Spark is started for it.")
        user.must("export")
        expect(_sent(user) == 0, "a round without news sends nothing")
        explain("", "At the server:")
        server.must("query", "sql", EACH_ONCE, "--refresh", "always")


def _sent(user: Place) -> int:
    """Chunks, by one round more."""
    return sum(stream["chunks"] for sink in user.ask("export")["sinks"] for stream in sink["streams"])


@contextmanager
def _serving(place: Place, log: Path) -> Iterator[str]:
    """A server of this home on a port that is free; its address."""
    telling.show([*place.setting, "hyp", "server", "run", "--listen", "127.0.0.1:0"], " &")
    with (
        open(log, "wb") as written,
        subprocess.Popen(
            [HYP, "server", "run", "--listen", "127.0.0.1:0"],
            env=place.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=written,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode().strip()
            expect(line.startswith("listening on "), f"the server starts ({log.read_text()[-300:]})")
            say(f"     {line}")
            yield line.removeprefix("listening on ")
        finally:
            process.terminate()
