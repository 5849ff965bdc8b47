"""OpenCode: the sessions in its SQLite database."""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.opencode.history import OpenCodeHistory

CLIENT = Client(
    "opencode",
    "OpenCode",
    backfill=OpenCodeHistory(),
    resume=ResumeCommand(("opencode", "--session"), in_folder=True),
)
