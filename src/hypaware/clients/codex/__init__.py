"""Codex: attach, and the rollout files of its CLI in both forms."""

from hypaware.clients.client import Client
from hypaware.clients.codex.attach import CodexSettings
from hypaware.clients.codex.history import CodexHistory

CLIENT = Client("codex", "OpenAI's Codex CLI", backfill=CodexHistory(), settings=CodexSettings())
