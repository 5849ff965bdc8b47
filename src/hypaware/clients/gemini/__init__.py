"""Gemini CLI: the sessions that it keeps as JSON lines, in older versions as JSON documents."""

from hypaware.clients.client import Client, ResumeCommand

CLIENT = Client(
    "gemini",
    "Gemini CLI",
    backfill="hypaware.clients.gemini.history:HISTORY",
    resume=ResumeCommand(("gemini", "--resume"), in_folder=True),
    service_names=("gemini-cli",),
)
