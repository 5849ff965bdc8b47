"""The real Claude Code and Codex, as a user of this machine runs them: directly, or attached to a gateway.

They come from npm (`make real-clients`), run without a terminal in their own folder, with an invented login. Their
provider is a stub: a proxy leads every connection to it, whatever its host, so no network is needed. Required settings:

- both: HOME and their config folders (CLAUDE_CONFIG_DIR, CODEX_HOME) in scratch, an API key in the environment
  (ANTHROPIC_API_KEY, for Codex in its auth.json);
- Claude Code: CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC, or it contacts other hosts too; `--allowedTools`; the tools of
  MCP servers before the first request (MCP_CONNECTION_NONBLOCKING);
- Codex: `--dangerously-bypass-approvals-and-sandbox`, because the sandbox does not work inside a container, and
  `--skip-git-repo-check`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hypaware.gateway import handover
from hypaware.home import Home, cache_dir, locks
from tests.support import claude_transcripts, codex_rollouts
from tests.support.command import Hyp
from tests.support.processes import PATIENCE, eventually, wait_until_gone
from tests.support.tunnel import tunnel_to
from tests.support.upstream_stub import Responder, UpstreamStub

_SECONDS = 120
_KEY = "sk-ant-api03-nobody-issued-this"
_CONFIG = """\
version = 1
[gateway]
listen = "127.0.0.1:{port}"
[flush]
interval = "1h"
cold_interval = "1h"
"""
NOT_FOLLOWED = """\
[clients.{client}]
enabled = true
history_from = "2100-01-01"
"""
"""More settings for a daemon: it records what its gateway sees, and leaves the transcripts to `hyp backfill`."""
FREELY = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


@dataclass(frozen=True)
class Client:
    name: str
    first: tuple[str, ...]
    then: tuple[str, ...]
    """Goes on with the session before."""
    transcripts: str
    provider: Any


CLAUDE = Client(
    "claude",
    ("-p", "--allowedTools", "Bash", "--", "Say what the command says."),
    ("-p", "--continue", "--allowedTools", "Bash", "--", "And once more."),
    ".claude/projects/**/*.jsonl",
    claude_transcripts.PROVIDER,
)
CODEX = Client(
    "codex",
    ("exec", *FREELY, "Say what the command says."),
    ("exec", "resume", "--last", *FREELY, "And once more."),
    ".codex/sessions/**/*.jsonl",
    codex_rollouts.PROVIDER,
)


@dataclass(frozen=True)
class User:
    """A user with a home folder, a project, and one client."""

    hyp: Hyp
    folder: Path
    client: Client
    program: str
    stub: UpstreamStub
    proxy: str

    @property
    def environment(self) -> dict[str, str]:
        beside = ("_proxy", "anthropic_", "claude", "openai_", "codex_")
        kept = {name: value for name, value in os.environ.items() if not any(mark in name.lower() for mark in beside)}
        authority = str(self.stub.ca_file)
        return {
            **kept,
            "HYP_HOME": str(self.hyp.home),
            "HYP_CACHE": str(cache_dir()),
            "HOME": str(self.folder),
            "CLAUDE_CONFIG_DIR": str(self.folder / ".claude"),
            "CODEX_HOME": str(self.folder / ".codex"),
            "ANTHROPIC_API_KEY": _KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "MCP_CONNECTION_NONBLOCKING": "0",
            "HTTPS_PROXY": self.proxy,
            "SSL_CERT_FILE": authority,
            "NODE_EXTRA_CA_CERTS": authority,
        }

    def says(self, *args: str) -> str:
        done = subprocess.run(
            [self.program, *args],
            env=self.environment,
            cwd=self.folder / "project",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{self.program} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def log_in_with_chatgpt(self) -> None:
        about = {"chatgpt_plan_type": "plus", "chatgpt_user_id": "u", "chatgpt_account_id": "a"}
        claims = {"exp": 4102444800, "email": "a@b.example", "https://api.openai.com/auth": about}
        parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in ({"alg": "none"}, claims)]
        token = b".".join((*parts, b"signature")).decode()
        tokens = {"id_token": token, "access_token": token, "refresh_token": "r", "account_id": "a"}
        login = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": datetime.now(UTC).isoformat()}
        (self.folder / ".codex" / "auth.json").write_text(json.dumps(login))


@contextmanager
def user_of(client: Client, tmp_path: Path, answer: Responder) -> Iterator[User]:
    program = find_program(client.name)
    with UpstreamStub(answer) as stub, tunnel_to(stub.port) as tunnel:
        user = User(Hyp(tmp_path / "hyp"), tmp_path / "user", client, program, stub, tunnel.url)
        for name in (".claude", ".codex", "project"):
            (user.folder / name).mkdir(parents=True)
        (user.folder / ".codex" / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": _KEY}))
        yield user


def find_program(name: str) -> str:
    chosen = os.environ.get("HYP_REAL_CLIENTS")
    found = shutil.which(name, path=str(Path(chosen) / "node_modules" / ".bin") if chosen else None)
    if found is None:
        where = f"in HYP_REAL_CLIENTS={chosen}" if chosen else "on PATH"
        pytest.skip(f"{name} is not installed {where}: make real-clients gets it from npm")
    return found


@contextmanager
def running_daemon(user: User, port: int, more: str = "", *, ends_with: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon with a gateway at this port, and more settings. At the end the client is detached."""
    user.hyp.home.mkdir(exist_ok=True)
    (user.hyp.home / "config.toml").write_text(_CONFIG.format(port=port) + more)
    daemon = user.hyp.start("daemon", "run", **user.environment)
    try:
        eventually(lambda: _answers(port) or daemon.poll() is not None)
        yield daemon
        daemon.send_signal(signal.SIGTERM)
        _, told = daemon.communicate(timeout=PATIENCE)
        assert daemon.returncode == ends_with, told
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.communicate()
        user.hyp.run("client", "detach", user.client.name, **user.environment)
        _end_who_stands_by(Home(user.hyp.home))


@contextmanager
def attached(client: Client, tmp_path: Path, answer: Responder, port: int) -> Iterator[User]:
    with user_of(client, tmp_path, answer) as user, running_daemon(user, port):
        attach(user)
        yield user


def attach(user: User) -> dict[str, Any]:
    (done,) = user.hyp.ok("client", "attach", user.client.name, **user.environment)["clients"]
    return dict(done)


def detach(user: User) -> dict[str, Any]:
    (done,) = user.hyp.ok("client", "detach", user.client.name, **user.environment)["clients"]
    return dict(done)


def _answers(port: int) -> bool:
    with closing(socket.socket()) as call:
        return call.connect_ex(("127.0.0.1", port)) == 0


def _end_who_stands_by(home: Home) -> None:
    """Stop the fallback: it would listen for another hour, for open sessions."""
    if (pid := locks.lock_holder(handover.fallback_lock_path(home))) is not None:
        os.kill(pid, signal.SIGTERM)
        wait_until_gone(pid)
