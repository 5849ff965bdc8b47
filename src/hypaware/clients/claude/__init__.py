"""Claude Code: attach, and its transcripts, whose format is not documented and is read defensively.

`history` finds the transcripts and turns each session of a file into an exchange, `index` reads a file once and
indexes how its lines relate to each other. Session ids, agent ids and paths in a transcript are data: no path is ever
built from them.
"""

from __future__ import annotations

from hypaware.clients.claude.attach import ClaudeSettings
from hypaware.clients.claude.history import ClaudeHistory
from hypaware.clients.client import Client

CLIENT = Client("claude", "Claude Code", backfill=ClaudeHistory(), settings=ClaudeSettings())
