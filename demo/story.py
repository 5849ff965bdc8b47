"""The chapters of the demo. Each checks what HypAware promises, and the first failed check ends the demo."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo import console, provider, verdict
from demo.client import SESSION
from demo.console import bold, chapter, expect, explain, say
from demo.stage import HYP, ROOT, History, Place, create_history, wait_for
from tests.support.ports import held_port

LOST_ANSWER = "export.ship.after-answer"
QUESTION = "What is left to do for the second currency?"

SESSIONS = """SELECT min(date) AS day, client_name AS client, split_part(cwd, '/', -1) AS project,
       count(*) AS parts, count_if(part_type = 'tool_call') AS tool_calls,
       timestampdiff(SECOND, min(message_created_at), max(message_created_at)) AS seconds
FROM ai_gateway_messages WHERE provider_type IS DISTINCT FROM 'gateway'
GROUP BY session_id, client_name, cwd ORDER BY min(message_created_at) LIMIT 10"""
ERRORS = """SELECT date, client_name AS client, tool_name AS tool, left(content_text, 58) AS said
FROM ai_gateway_messages WHERE is_error ORDER BY message_created_at LIMIT 5"""
LIVE = f"""SELECT role, model, content_text FROM ai_gateway_messages
WHERE session_id = '{SESSION}' AND provider_type IS DISTINCT FROM 'gateway' ORDER BY message_index"""
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
# Limit the user's own history, so that the demo takes two minutes at most.
LAST_DAYS = """[retention]
default_days = 30
"""


def play(user: Place, server: Place, folder: Path, history: History) -> None:
    create_history(user.user, history)
    with provider.run_provider() as address, held_port() as port:
        _prepare(user, address, port, history)
        _set_up(user, history)
        _query(user)
        _record_live(user)
    _deliver(user, server, folder)


def verify(user: Place, server: Place, history: History) -> bool:
    chapter(
        "Check it independently.",
        "`hyp verify` checks the integrity of the data. Then another program, PyIceberg, reads both lakes "
        "and compares them row by row.",
    )
    user.run_ok("verify", "--deep")
    transcripts = verdict.count_parts(user.user.rglob("*.jsonl") if history == "sample" else ())
    found = verdict.compare(verdict.read_parts(user.home), verdict.read_parts(server.home), transcripts)
    say("")
    for what, number in _figures(found):
        say(f"   {what:<40}{number:>9,}")
    if found.holds:
        verdict_text = f"{bold('Verdict: it holds.')} Every row is exactly once in each lake, unchanged."
    else:
        verdict_text = f"{bold('Verdict: it does NOT hold.')} This is a bug."
    explain("", verdict_text)
    return found.holds


def _figures(found: verdict.Verdict) -> Iterator[tuple[str, int]]:
    if found.in_transcripts:
        yield f"parts in the {len(found.in_transcripts)} transcripts", sum(found.in_transcripts.values())
        yield "rows imported from them", sum(found.imported.values())
    yield "rows in the lake, including live ones", found.in_lake
    yield "rows on the server", found.at_server
    yield "duplicate rows in either lake", found.twice
    yield "rows in only one of the lakes", found.only_in_lake + found.only_at_server
    yield "rows with different content", found.different


def _prepare(user: Place, address: str, port: int, history: History) -> None:
    user.home.mkdir(mode=0o700)
    config = CONFIG.format(port=port, provider=address) + (LAST_DAYS if history == "own" else "")
    (user.home / "config.toml").write_text(config)
    say("", "The demo has its own config, so that it uses neither your daemon nor a real provider:")
    say("", "   $ cat $HYP_HOME/config.toml", *(f"     {line}" for line in config.splitlines()))


def _set_up(user: Place, history: History) -> None:
    whose = "Seven sample sessions are in the folders of Claude Code and Codex."
    if history == "own":
        whose = "Your own sessions of the last 30 days are imported; they are only read."
    chapter(
        "Set it up with one command.",
        whose,
        "It writes the config, imports the history, and starts the daemon, which records new sessions from the "
        "transcripts that the clients write.",
    )
    user.run_ok("setup", "--yes")
    explain("", "You can import again at any time: only new history is read, and nothing is stored twice.")
    user.run_ok("backfill")


def _query(user: Place) -> None:
    chapter("Query it with SQL.")
    user.run_ok("query", "sql", SESSIONS)
    user.run_ok("query", "sql", ERRORS)


def _record_live(user: Place) -> None:
    chapter(
        "Record what transcripts do not hold.",
        "If you ask for it, a client also sends its requests through the gateway. A stand-in for Claude Code calls the "
        "address in its settings, which is now the gateway. The gateway forwards the request to a stand-in for the "
        "provider, and records it durably within a second after the response.",
    )
    user.run_ok("client", "attach", "claude")
    words = ["python", "-m", "demo.client", QUESTION]
    answered = console.run(words, [sys.executable, *words[1:]], user.environment(), ROOT)
    expect(answered == 0, "a client works through the gateway")
    wait_for(lambda: _recorded(user) == 1, "the exchange is recorded")
    user.run_ok("query", "sql", LIVE, "--refresh", "always")
    user.run_ok("status")
    explain(
        "",
        "Detach the clients: their settings are restored. The daemon could also deliver on a schedule; here you do it "
        "by hand, so that you can watch it.",
    )
    user.run_ok("client", "detach")
    user.run_ok("daemon", "stop")


def _recorded(user: Place) -> int:
    return int(user.query_json("daemon", "status")["gateway"]["recorded"])


def _deliver(user: Place, server: Place, folder: Path) -> None:
    chapter(
        "Deliver it to your team's server, despite a kill -9.",
        "The server is another home on this machine.",
    )
    token = folder / "token"
    console.show([*server.setting, "hyp", "server", "token", "create", "--label", "demo"], f" > {token}")
    token.write_text(server.output("server", "token", "create", "--label", "demo"))
    with _run_server(server, folder / "server.log") as url:
        user.run_ok("config", "set", "sinks.team", f'{{ kind = "forward", url = "{url}", token_file = "{token}" }}')
        explain(
            "",
            "The engine is killed at the worst moment: the server has stored and acknowledged rows, but nothing has "
            "been recorded here yet.",
        )
        expect(user.run("export", crash_at=LOST_ANSWER) == 1, "the delivery was interrupted")
        expect(user.query_json("engine", "status")["state"] == "stopped", "the engine is dead")
        explain("", "The next export asks the server which rows it has, and sends the rest.")
        user.run_ok("export")
        explain("", "One more export: there is nothing to send, so nothing is sent and Spark is not started.")
        user.run_ok("export")
        expect(_sent(user) == 0, "an export without new rows sends nothing")
        explain("", "On the server:")
        server.run_ok("query", "sql", EACH_ONCE, "--refresh", "always")


def _sent(user: Place) -> int:
    """Run another export and return the number of chunks it sent."""
    return sum(stream["chunks"] for sink in user.query_json("export")["sinks"] for stream in sink["streams"])


@contextmanager
def _run_server(place: Place, log: Path) -> Iterator[str]:
    """Run a server on a free port and yield its address."""
    console.show([*place.setting, "hyp", "server", "run", "--listen", "127.0.0.1:0"], " &")
    with (
        open(log, "wb") as log_file,
        subprocess.Popen(
            [HYP, "server", "run", "--listen", "127.0.0.1:0"],
            env=place.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
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
