"""Gemini CLI: the sessions that it keeps as JSON lines, in older versions as JSON documents."""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.gemini.history import GeminiHistory

CLIENT = Client(
    "gemini",
    "Gemini CLI",
    backfill=GeminiHistory(),
    resume=ResumeCommand(("gemini", "--resume"), in_folder=True),
    service_names=("gemini-cli",),
)
