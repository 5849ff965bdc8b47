"""OpenCode: attach, and the sessions in its SQLite database."""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.client_requests import ClientTraffic

CLIENT = Client(
    "opencode",
    "OpenCode",
    backfill="hypaware.clients.opencode.history:HISTORY",
    resume=ResumeCommand(("opencode", "--session"), in_folder=True),
    settings="hypaware.clients.opencode.attach:SETTINGS",
    # Where its requests go depends on its providers; attach records it.
    traffic=ClientTraffic(
        user_agents=("opencode",),
        session_headers=("x-session-id", "x-opencode-session"),
        recorded_headers=("x-parent-session-id",),
    ),
    requests="hypaware.clients.opencode.requests:REQUESTS",
)
