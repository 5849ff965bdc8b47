"""A client that stands in for Claude Code: one question, to the address that its settings name.

    python -m demo.client QUESTION

It reads `settings.json` as the real one does, so it goes through the gateway exactly if `hyp client attach` or
`hyp setup` sent it there.
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
"""The session that it speaks in."""


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
            sys.exit(f"the answer was {answer.status}: {answer.read()[:200]!r}")
        for line in answer:
            if line.startswith(b"data: "):
                said = json.loads(line[6:]).get("delta", {}).get("text", "")
                sys.stdout.write(said)
    finally:
        connection.close()
    sys.stdout.write("\n")


if __name__ == "__main__":
    ask(sys.argv[1])
