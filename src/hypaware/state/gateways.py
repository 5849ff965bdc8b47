"""The gateways that a server knows, and whom each id belongs to.

An id belongs to the secret that it was first enrolled with, or, for clients that have no secret, to the owner of the
token that they came with. It never passes from one to another by itself: only `release` frees it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, and_, insert, select, update

from hypaware.state import tables

_gateways = tables.gateways


@dataclass(frozen=True)
class Gateway:
    gateway_id: str
    host: str | None
    label: str | None
    bound_by: str | None
    """`secret`, `token`, or None for one that was released."""
    first_seen_at: str
    last_seen_at: str


@dataclass(frozen=True)
class Claim:
    """Who says that an id is theirs."""

    tenant: str
    gateway_id: str
    owner: str
    """Of the bootstrap token that they came with."""
    secret_hash: str | None = None
    label: str | None = None
    host: str | None = None


def bind(connection: Connection, claim: Claim) -> bool:
    """Gives the id to whoever claims it first, and says whether it is theirs.

    A client that was known by its token alone, and now has a secret, is known by its secret from then on.
    """
    here = and_(_gateways.c.tenant == claim.tenant, _gateways.c.gateway_id == claim.gateway_id)
    known = connection.execute(select(_gateways.c.secret_hash, _gateways.c.owner).where(here)).first()
    now = _now()
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
    connection.execute(update(_gateways).where(here).values(**values))
    return True


def seen(connection: Connection, tenant: str, hosts: Mapping[str, str | None]) -> None:
    """These gateways were here just now; a host that they did not tell stays as it was."""
    now = _now()
    for gateway_id, host in hosts.items():
        here = and_(_gateways.c.tenant == tenant, _gateways.c.gateway_id == gateway_id)
        told = {} if host is None else {"host": host}
        connection.execute(update(_gateways).where(here).values(last_seen_at=now, **told))


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
    """The next one who claims the id has it. What it delivered stays known under it."""
    here = and_(_gateways.c.tenant == tenant, _gateways.c.gateway_id == gateway_id)
    return bool(connection.execute(update(_gateways).where(here).values(secret_hash=None, owner=None)).rowcount)


def _now() -> str:
    return datetime.now(UTC).isoformat()
