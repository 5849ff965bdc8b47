"""Claude Code: attach, and its transcripts, whose format is not documented and is read defensively.

Session ids, agent ids and paths in a transcript are data: no path is ever built from them.
"""

from hypaware.clients.claude.attach import ClaudeSettings
from hypaware.clients.claude.history import ClaudeHistory
from hypaware.clients.claude.transcript import ClaudeTranscript
from hypaware.clients.client import Client, ResumeCommand

CLIENT = Client(
    "claude",
    "Claude Code",
    backfill=ClaudeHistory(),
    resume=ResumeCommand(("claude", "--resume"), in_folder=True),
    settings=ClaudeSettings(),
    transcripts=ClaudeTranscript(),
    service_names=("claude-code",),
)
