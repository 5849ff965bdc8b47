"""The gateways and bootstrap tokens of a server.

A gateway id is bound to the secret that it was first enrolled with or, for a client without a secret, to the owner of
the bootstrap token. Only `release` removes the binding.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, insert, select, update

from hypaware.state import streams, tables

_gateways = tables.gateways


@dataclass(frozen=True)
class Gateway:
    gateway_id: str
    host: str | None
    label: str | None
    bound_by: str | None
    """`secret`, `token`, or None if the gateway was released."""
    first_seen_at: str
    last_seen_at: str


@dataclass(frozen=True)
class Claim:
    """A request to use a gateway id."""

    tenant: str
    gateway_id: str
    owner: str
    """The owner of the bootstrap token."""
    secret_hash: str | None = None
    label: str | None = None
    host: str | None = None


def bind(connection: Connection, claim: Claim) -> bool:
    """Bind the id to the first client that claims it, and return whether the claim is accepted.

    A client that was bound by its token and now has a secret is bound by its secret from then on.
    """
    same = and_(_gateways.c.tenant == claim.tenant, _gateways.c.gateway_id == claim.gateway_id)
    known = connection.execute(select(_gateways.c.secret_hash, _gateways.c.owner).where(same)).first()
    now = streams.now()
    if known is None:
        connection.execute(
            insert(_gateways).values(
                tenant=claim.tenant,
                gateway_id=claim.gateway_id,
                secret_hash=claim.secret_hash,
                owner=claim.owner,
                label=claim.label,
                host=claim.host,
                first_seen_at=now,
                last_seen_at=now,
            )
        )
        return True
    if known.secret_hash is not None:
        if claim.secret_hash is None or not hmac.compare_digest(known.secret_hash, claim.secret_hash):
            return False
    elif known.owner is not None and known.owner != claim.owner:
        return False
    values = {"secret_hash": claim.secret_hash, "owner": claim.owner, "label": claim.label, "last_seen_at": now}
    if claim.host is not None:
        values["host"] = claim.host
    connection.execute(update(_gateways).where(same).values(**values))
    return True


def seen(connection: Connection, tenant: str, hosts: Mapping[str, str | None]) -> None:
    """Update the time at which gateways were last seen. A host that is None stays unchanged."""
    now = streams.now()
    for gateway_id, host in hosts.items():
        same = and_(_gateways.c.tenant == tenant, _gateways.c.gateway_id == gateway_id)
        values = {} if host is None else {"host": host}
        connection.execute(update(_gateways).where(same).values(last_seen_at=now, **values))


def all_gateways(connection: Connection, tenant: str) -> list[Gateway]:
    found = connection.execute(select(_gateways).where(_gateways.c.tenant == tenant).order_by(_gateways.c.gateway_id))
    return [
        Gateway(
            row.gateway_id,
            row.host,
            row.label,
            "secret" if row.secret_hash else "token" if row.owner else None,
            row.first_seen_at,
            row.last_seen_at,
        )
        for row in found
    ]


def release(connection: Connection, tenant: str, gateway_id: str) -> bool:
    """Release an id, so that the next client that claims it gets it. Its deliveries stay recorded."""
    same = and_(_gateways.c.tenant == tenant, _gateways.c.gateway_id == gateway_id)
    return bool(connection.execute(update(_gateways).where(same).values(secret_hash=None, owner=None)).rowcount)
