"""A prompt that is typed while the real Claude Code works, in its transcript and in the rows of an import."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_script import Script
from tests.support.history import rows_of
from tests.support.processes import PATIENCE, eventually
from tests.support.real_clients import CLAUDE, user_of
from tests.support.upstream_stub import ReceivedRequest, StubResponse

pytestmark = pytest.mark.real_clients

FIRST, QUEUED = "Say what the command says.", "And count to three while you are at it."
STREAMS = ("--verbose", "--input-format", "stream-json", "--output-format", "stream-json")


@pytest.mark.hazard(104)
def test_a_prompt_typed_while_the_client_works_is_one_row_of_the_user(tmp_path: Path) -> None:
    script, is_asked, is_queued = Script(), threading.Event(), threading.Event()

    def answer(seen: ReceivedRequest) -> StubResponse:
        if seen.target.startswith("/v1/messages"):
            is_asked.set()
            is_queued.wait(PATIENCE)
        return script.answer(seen)

    with user_of(CLAUDE, tmp_path, answer) as user:
        project = user.folder / "project"
        client = subprocess.Popen(
            [user.program, "-p", *STREAMS, "--allowedTools", "Bash"], env=user.environment, cwd=project, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            _say(client.stdin, FIRST)
            assert is_asked.wait(PATIENCE)
            _say(client.stdin, QUEUED)
            eventually(lambda: any(QUEUED in path.read_text() for path in user.folder.glob(CLAUDE.transcripts)))
            is_queued.set()
            assert any(json.loads(line)["type"] == "result" for line in client.stdout)
        finally:
            is_queued.set()
            client.kill()
            client.communicate()
        (transcript,) = user.folder.glob(CLAUDE.transcripts)
        assert '"type":"queued_command"' in transcript.read_text()
        made = [row for row in rows_of(CLAUDE.provider, transcript, quiet=True)[0] if row["part_type"] == "text"]
    assert [row["content_text"] for row in made if row["role"] == "user"] == [FIRST, QUEUED]
    (typed,) = [row for row in made if row["content_text"] == QUEUED]
    assert typed["message_id"] == typed["provider_uuid"]
    assert typed["attachment_type"] == "queued_command"


def _say(stdin: Any, text: str) -> None:
    stdin.write(json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n")
    stdin.flush()
