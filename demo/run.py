"""`make demo`: HypAware in a temporary home. It shows the commands as you would type them, and stops with an error
if anything is not as it should be."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HYP = Path(sys.executable).with_name("hyp")
DATASET = "ai_gateway_messages"
MORNING, AFTERNOON = "examples/morning.ndjson", "examples/afternoon.ndjson"
IN_MORNING, IN_ALL = 27, 40
CRASH = "lake.commit.after-commit"
LOST_ANSWER = "export.ship.after-answer"

BY_CLIENT = f"""SELECT client_name, count(DISTINCT session_id) AS sessions, count(*) AS parts,
       sum(int(get_json_object(attributes, '$.usage.output_tokens'))) AS output_tokens
FROM {DATASET} GROUP BY client_name ORDER BY client_name"""
BY_TOOL = f"""SELECT tool_name, count(*) AS calls FROM {DATASET}
WHERE part_type = 'tool_call' GROUP BY tool_name ORDER BY calls DESC, tool_name LIMIT 5"""
EACH_ONCE = f"SELECT count(*) AS parts, count(DISTINCT part_id) AS different FROM {DATASET}"
ERRORS = f"SELECT client_name, tool_name, content_text FROM {DATASET} WHERE is_error"


class Demo:
    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "HYP_HOME": str(home)}
        self.environment.pop("HYP_CRASH_AT", None)
        self._step = 0

    def step(self, title: str, *about: str) -> None:
        self._step += 1
        say(f"\n{bold(f'{self._step}. {title}')}", *(f"   {line}" for line in about))

    def run(self, *args: str, crash_at: str | None = None) -> int:
        """Shows a command and what it prints."""
        setting = {"HYP_CRASH_AT": crash_at} if crash_at else {}
        words = [f"{name}={value}" for name, value in setting.items()] + ["hyp", *map(shown, args)]
        say("", f"   $ {' '.join(words)}")
        done = subprocess.run(
            [HYP, *args],
            env={**self.environment, **setting},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        say(*(f"     {line}" for line in done.stdout.decode().splitlines()))
        return done.returncode

    def must(self, *args: str) -> None:
        expect(self.run(*args) == 0, "the command failed")

    def ask(self, *args: str) -> Any:
        """The same for the demo's own eyes."""
        done = subprocess.run(
            [HYP, *args], env=self.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        expect(done.returncode == 0, f"hyp {' '.join(args)} failed")
        return json.loads(done.stdout)

    def output(self, *args: str) -> str:
        done = subprocess.run([HYP, *args], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        expect(done.returncode == 0, f"hyp {' '.join(args)} failed")
        return done.stdout.decode().strip()

    @contextmanager
    def serving(self, log: Path) -> Iterator[str]:
        """A server of this home, on a port that is free; its address."""
        say("", "   $ hyp server run &")
        with open(log, "wb") as written:
            server = subprocess.Popen(
                [HYP, "server", "run", "--listen", "127.0.0.1:0"],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=written,
            )
        try:
            assert server.stdout is not None
            line = server.stdout.readline().decode().strip()
            expect(line.startswith("listening on "), f"the server started ({log.read_text()[-300:]})")
            say(f"     {line}")
            yield line.removeprefix("listening on ")
        finally:
            server.terminate()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()

    def rows(self) -> int:
        (found,) = self.ask(
            "query", "sql", f"SELECT count(*) AS n FROM {DATASET}", "--refresh", "never", "--format", "json"
        )
        return int(found["n"])


def tell(demo: Demo) -> None:
    demo.step(
        "Rows go in.", "27 parts of two sessions, Claude and Codex. What is reported as durable survives a power cut."
    )
    demo.must("ingest", DATASET, MORNING)

    demo.step(
        "They are committed to the lake.", "The first command that needs Spark starts it; the next ones find it warm."
    )
    demo.must("flush")
    expect(demo.rows() == IN_MORNING, "every row is in the lake")

    demo.step("And asked, in SQL.")
    demo.must("query", "sql", BY_CLIENT)
    demo.must("query", "sql", BY_TOOL)
    demo.must("query", "sql", ERRORS)

    demo.step("The same rows again: nothing is doubled.")
    demo.must("ingest", DATASET, MORNING)
    demo.must("flush")
    expect(demo.rows() == IN_MORNING, "no row is there twice")

    demo.step(
        "New rows, and kill -9 in the middle of the flush.",
        "The engine and its JVM are killed after the commit, before anything could note that it happened.",
    )
    demo.must("ingest", DATASET, AFTERNOON)
    expect(demo.run("flush", crash_at=CRASH) == 1, "the flush was cut off")
    expect(demo.ask("engine", "status", "--json")["state"] == "stopped", "the engine is gone")
    say("", "   The next flush finds the rows in the lake under that flush's id, and does not write them again.")
    demo.must("flush")
    demo.must("query", "sql", EACH_ONCE)
    expect(demo.rows() == IN_ALL, "13 new rows, each once")

    demo.step("Do not take our word for it.")
    demo.must("verify", "--deep")


def tell_of_delivery(demo: Demo, team: Demo, folder: Path) -> None:
    demo.step(
        "Deliver it to a server, and kill -9 in the middle.",
        "The server is another home on this machine. The engine is killed when the server has the first chunk, before",
        "the answer is written down.",
    )
    (folder / "token").write_text(team.output("server", "token", "create", "--label", "demo"))
    with team.serving(folder / "server.log") as url:
        demo.must(
            "config", "set", "sinks.team", f'{{ kind = "forward", url = "{url}", token_file = "{folder}/token" }}'
        )
        expect(demo.run("export", crash_at=LOST_ANSWER) == 1, "the delivery was cut off")
        say("", "   The next round asks the server what it has, and sends the rest.")
        demo.must("export")
        demo.must("export", "status")
        say("", "   On the server:")
        team.must("query", "sql", EACH_ONCE)
        expect(team.rows() == IN_ALL, "every row is at the server, once")
        say("", "   A second round has nothing to send, and starts nothing.")
        demo.must("export")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hyp-demo-") as folder:
        demo, team = Demo(Path(folder) / "home"), Demo(Path(folder) / "server")
        say(
            bold("HypAware, in a temporary home."),
            "Everything below is a command that you can type; `hyp` is .venv/bin/hyp.",
        )
        try:
            tell(demo)
            tell_of_delivery(demo, team, Path(folder))
        except NotAsPromised as broken:
            say("", f"{bold('The demo failed:')} {broken}. This is a bug; `make test` may say more.")
            return 1
        finally:
            for each in (demo, team):
                subprocess.run([HYP, "engine", "stop"], env=each.environment, capture_output=True, check=False)
    say(
        f"\n{bold('That was it.')} The temporary home is gone. What to do next:",
        "",
        "   source .venv/bin/activate",
        "   hyp backfill --dry-run      # what Claude Code and Codex have kept of your sessions; writes nothing",
        "   hyp backfill                # into your own home, ~/.hyp",
        "   hyp query overview",
        "   hyp --help",
        "",
        "   README.md in one page, ARCHITECTURE.md in another; `make test` runs every test.",
    )
    return 0


class NotAsPromised(Exception):
    pass


def expect(held: bool, what: str) -> None:
    if not held:
        raise NotAsPromised(f"not true: {what}")


def shown(word: str) -> str:
    """As one would type it; SQL keeps its lines, in double quotes."""
    if " " in word and not set(word.replace("$.", "")) & set('"$`\\'):
        return f'"{word}"'.replace("\n", "\n     ")
    return shlex.quote(word).replace("\n", "\n     ")


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


def say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
