"""Scratchpad, an imaginary client: all that HypAware has to know of it.

This module is imported by many commands, so it holds values only. The parts are named by their place and are imported
when they are used.
"""

from hypaware.clients.client import Client, ResumeCommand
from hypaware.clients.client_requests import ClientTraffic, ClientUpstream

CLIENT = Client(
    "scratchpad",
    "Notes, as an example of a plugin",
    backfill="hypaware_scratchpad.history:HISTORY",
    resume=ResumeCommand(("scratchpad", "--open")),
    settings="hypaware_scratchpad.attach:SETTINGS",
    traffic=ClientTraffic(
        upstreams=(
            ClientUpstream("scratchpad", "https://api.scratchpad.example", "openai", ("/v1/chat/completions",)),
        ),
        user_agents=("scratchpad",),
        session_headers=("x-scratchpad-session",),
    ),
    requests="hypaware_scratchpad.requests:REQUESTS",
)
