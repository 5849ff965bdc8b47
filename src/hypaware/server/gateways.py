"""The gateways that a server knows, for `hyp server gateways`."""

from __future__ import annotations

from contextlib import closing

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.opening import open_home
from hypaware.server.callers import TENANT
from hypaware.state import gateways
from hypaware.state.gateways import Gateway


def listed(home: Home) -> list[Gateway]:
    with closing(open_home(home).store) as store, store.reading() as connection:
        return gateways.all_gateways(connection, TENANT)


def release(home: Home, gateway_id: str) -> None:
    """Release a gateway id, for a machine that lost its secret. The next machine that enrols under the id gets it."""
    with closing(open_home(home).store) as store, store.transaction() as connection:
        if not gateways.release(connection, TENANT, gateway_id):
            raise HypError(f"this server knows no gateway {gateway_id!r}", kind="unknown_gateway")
