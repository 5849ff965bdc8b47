"""Claude Code: attach, and its transcripts, whose format is not documented and is read defensively.

Session ids, agent ids and paths in a transcript are data: no path is ever built from them.
"""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.client_requests import ClientTraffic, ClientUpstream

CLIENT = Client(
    "claude",
    "Claude Code",
    backfill="hypaware.clients.claude.history:HISTORY",
    resume=ResumeCommand(("claude", "--resume"), in_folder=True),
    settings="hypaware.clients.claude.attach:SETTINGS",
    traffic=ClientTraffic(
        upstreams=(
            ClientUpstream("anthropic", "https://api.anthropic.com", "anthropic", ("/v1", "/v1/messages", "/api")),
        ),
        user_agents=("claude-cli",),
        session_headers=("x-claude-code-session-id",),
        recorded_headers=("x-claude-code-agent-id",),
    ),
    requests="hypaware.clients.claude.requests:REQUESTS",
    mcp="hypaware.clients.claude.mcp:ClaudeMcpSettings",
    transcripts="hypaware.clients.claude.transcript:TRANSCRIPTS",
    service_names=("claude-code",),
)
