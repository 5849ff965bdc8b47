"""The gateway settings that the config and the attached clients require."""

from __future__ import annotations

from dataclasses import dataclass

from hypaware.capture import own_upstreams
from hypaware.capture.routes import Routes
from hypaware.config import ClientConfig, Config, UpstreamConfig
from hypaware.config.schema import BUILT_IN_CLIENTS
from hypaware.home import Home


@dataclass(frozen=True)
class Wanted:
    listen: str
    upstreams: tuple[UpstreamConfig | own_upstreams.OwnUpstream, ...]
    recorded: tuple[str, ...]
    is_needed: bool
    """False if no client is enabled or attached and the config has no upstream."""

    @property
    def routing(self) -> object:
        """A value that changes when requests would be routed differently."""
        return self.upstreams, self.recorded

    def routes(self) -> Routes:
        return Routes(self.upstreams, self.recorded)


def wanted(home: Home, config: Config) -> Wanted:
    recorded = tuple(name for name in BUILT_IN_CLIENTS if config.clients.get(name, ClientConfig()).enabled)
    custom = own_upstreams.read(home)
    is_needed = bool(recorded or config.gateway.upstreams or own_upstreams.attached(home))
    return Wanted(config.gateway.listen, (*config.gateway.upstreams, *custom), recorded, is_needed)
