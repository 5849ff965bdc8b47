"""Codex: attach, and the rollout files of its CLI in both forms."""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.client_requests import ClientTraffic, ClientUpstream

CLIENT = Client(
    "codex",
    "OpenAI's Codex CLI",
    backfill="hypaware.clients.codex.history:HISTORY",
    resume=ResumeCommand(("codex", "resume"), by_thread=True),
    settings="hypaware.clients.codex.attach:SETTINGS",
    traffic=ClientTraffic(
        upstreams=(
            ClientUpstream(
                "openai", "https://api.openai.com", "openai", ("/v1", "/v1/responses", "/v1/chat/completions")
            ),
            ClientUpstream("chatgpt", "https://chatgpt.com", "openai", ("/backend-api",)),
        ),
        aliases={"/chatgpt/": "/backend-api/"},
        user_agents=("codex*",),
        recorded_headers=(
            "x-codex-beta-features",
            "x-codex-parent-thread-id",
            "x-codex-turn-metadata",
            "x-codex-window-id",
        ),
    ),
    requests="hypaware.clients.codex.requests:REQUESTS",
    mcp="hypaware.clients.codex.mcp:CodexMcpSettings",
    transcripts="hypaware.clients.codex.rollout_writer:TRANSCRIPTS",
    service_names=("codex_cli_rs", "codex_exec"),
)
