"""GitHub Copilot CLI: the events of its sessions."""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.copilot.history import CopilotHistory

CLIENT = Client(
    "copilot",
    "GitHub Copilot CLI",
    backfill=CopilotHistory(),
    resume=ResumeCommand(("copilot", "--resume"), in_folder=True),
)
