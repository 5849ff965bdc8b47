"""Run `hyp` as a real process, and return its output and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import PATIENCE

HYP = Path(sys.executable).with_name("hyp")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Hyp:
    """A home, and commands that run with it. `inline` runs Spark in the process of the command."""

    home: Path
    inline: bool = False

    def environment(self, **extra: str) -> dict[str, str]:
        found = {**os.environ, "HYP_HOME": str(self.home), **extra}
        found.pop("HYP_ENGINE", None)
        if self.inline:
            found["HYP_ENGINE"] = "inline"
        return found

    def start(self, *args: str, **extra: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(HYP), *args],
            env=self.environment(**extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *args: str, stdin: str | bytes = b"", **extra: str) -> Result:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [str(HYP), *args],
            env=self.environment(**extra),
            input=given,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *args: str, stdin: str | bytes = b"", **extra: str) -> Any:
        """Run a command that must succeed, and return its JSON."""
        result = self.run(*args, "--json", stdin=stdin, **extra)
        assert result.code == 0, f"hyp {' '.join(args)} ended with {result.code}: {result.out}{result.err}"
        return result.json

    def ingest(self, rows: list[dict[str, Any]], **extra: str) -> Any:
        return self.ok("ingest", "ai_gateway_messages", "-", stdin=ndjson(rows), **extra)

    def query(self, sql: str, refresh: str = "never") -> list[dict[str, Any]]:
        result = self.run("query", "sql", sql, "--format", "json", "--refresh", refresh)
        assert result.code == 0, result.err
        found: list[dict[str, Any]] = result.json
        return found


def ndjson(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
