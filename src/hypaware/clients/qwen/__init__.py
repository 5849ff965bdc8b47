"""Qwen Code: the sessions that it keeps as JSON lines."""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.qwen.history import QwenHistory

CLIENT = Client(
    "qwen",
    "Qwen Code",
    backfill=QwenHistory(),
    resume=ResumeCommand(("qwen", "--resume"), in_folder=True),
)
