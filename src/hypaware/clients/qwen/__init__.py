"""Qwen Code: the sessions that it keeps as JSON lines."""

from hypaware.clients.client import Client, ResumeCommand

CLIENT = Client(
    "qwen",
    "Qwen Code",
    backfill="hypaware.clients.qwen.history:HISTORY",
    resume=ResumeCommand(("qwen", "--resume"), in_folder=True),
    service_names=("qwen-code",),
)
