"""Claude Code: its transcripts, read defensively, since nobody promises their shape.

`files` finds them, `lines` goes over a file once and keeps what lines mean for each other, `exchange` makes an exchange
of each session in it. Session ids, agent ids and paths in a transcript are data: no path is ever built of them.
"""

from __future__ import annotations

from hypaware.clients.claude.attach import ClaudeSettings
from hypaware.clients.claude.history import ClaudeHistory
from hypaware.clients.client import Client

CLIENT = Client("claude", "Claude Code", backfill=ClaudeHistory(), settings=ClaudeSettings())
