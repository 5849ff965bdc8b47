"""OpenCode: the sessions in its SQLite database."""

from hypaware.clients.client import Client, ResumeCommand

CLIENT = Client(
    "opencode",
    "OpenCode",
    backfill="hypaware.clients.opencode.history:HISTORY",
    resume=ResumeCommand(("opencode", "--session"), in_folder=True),
)
