"""GitHub Copilot CLI: the events of its sessions."""

from hypaware.clients.client import Client, ResumeCommand

CLIENT = Client(
    "copilot",
    "GitHub Copilot CLI",
    backfill="hypaware.clients.copilot.history:HISTORY",
    resume=ResumeCommand(("copilot", "--resume"), in_folder=True),
    service_names=("github-copilot",),
)
