"""Codex: attach, and the rollout files of its CLI in both forms."""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.codex.attach import CodexSettings
from hypaware.clients.codex.history import CodexHistory
from hypaware.clients.codex.rollout_writer import CodexRollout

CLIENT = Client(
    "codex",
    "OpenAI's Codex CLI",
    backfill=CodexHistory(),
    resume=ResumeCommand(("codex", "resume"), by_thread=True),
    settings=CodexSettings(),
    transcripts=CodexRollout(),
    service_names=("codex_cli_rs", "codex_exec"),
)
