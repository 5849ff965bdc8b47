"""A stand-in for Claude Code: send one question to the address in its settings.

    python -m demo.client QUESTION

It reads `settings.json` as the real client does, so it uses the gateway only if `hyp client attach` attached it.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from demo.provider import MODEL

SESSION = "0d3a0000-0000-4000-8000-000000000001"
"""The id of its session."""


def address() -> str:
    settings = json.loads((Path(os.environ["CLAUDE_CONFIG_DIR"]) / "settings.json").read_bytes())
    return str(settings["env"]["ANTHROPIC_BASE_URL"])


def ask(question: str) -> None:
    base = urlsplit(address())
    assert base.hostname is not None
    sys.stdout.write(f"(to {base.geturl()})\n")
    body = {
        "model": MODEL,
        "max_tokens": 1024,
        "stream": True,
        "messages": [{"role": "user", "content": question}],
        "metadata": {"user_id": json.dumps({"session_id": SESSION})},
    }
    headers = {"content-type": "application/json", "user-agent": "claude-cli/2.1.325 (external, cli)"}
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    try:
        connection.request("POST", f"{base.path}/v1/messages?beta=true", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"error: the response was {answer.status}: {answer.read()[:200]!r}")
        for line in answer:
            if line.startswith(b"data: "):
                sys.stdout.write(json.loads(line[6:]).get("delta", {}).get("text", ""))
    finally:
        connection.close()
    sys.stdout.write("\n")


if __name__ == "__main__":
    ask(sys.argv[1])
