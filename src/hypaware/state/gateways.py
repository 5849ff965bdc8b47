"""The gateways and bootstrap tokens of a server.

A gateway id is bound to the secret that it was first enrolled with or, for a client without a secret, to the owner of
the bootstrap token. Only `release_gateway` removes the binding. The state stores hashes of secrets and tokens, never
the values.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING

from hypaware.state.schema import utc_now

if TYPE_CHECKING:
    from hypaware.state.store import Connection

_OF_GATEWAY = "tenant = :tenant AND gateway_id = :gateway_id"


@dataclass(frozen=True)
class GatewayRecord:
    gateway_id: str
    host: str | None
    label: str | None
    bound_by: str | None
    """`secret`, `token`, or None if the gateway was released."""
    first_seen_at: str
    last_seen_at: str


@dataclass(frozen=True)
class GatewayClaim:
    """A request to use a gateway id."""

    tenant: str
    gateway_id: str
    owner: str
    """The owner of the bootstrap token."""
    secret_hash: str | None = None
    label: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class BootstrapToken:
    id: str
    label: str | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None

    def refusal(self, now: datetime) -> str | None:
        """Return why the token cannot be used any more, or None."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and datetime.fromisoformat(self.expires_at) <= now:
            return "expired"
        return None


_TOKEN_COLUMNS = ", ".join(field.name for field in fields(BootstrapToken))


def bind_gateway(connection: Connection, claim: GatewayClaim) -> bool:
    """Bind the id to the first client that claims it, and return whether the claim is accepted.

    A client that was bound by its token and now has a secret is bound by its secret from then on.
    """
    known = connection.row(f"SELECT secret_hash, owner FROM gateways WHERE {_OF_GATEWAY}", asdict(claim))
    values = {**asdict(claim), "now": utc_now()}
    if known is None:
        connection.insert("gateways", {**asdict(claim), "first_seen_at": values["now"], "last_seen_at": values["now"]})
        return True
    if known["secret_hash"] is not None:
        if claim.secret_hash is None or not hmac.compare_digest(known["secret_hash"], claim.secret_hash):
            return False
    elif known["owner"] is not None and known["owner"] != claim.owner:
        return False
    connection.execute(
        "UPDATE gateways SET secret_hash = :secret_hash, owner = :owner, label = :label,"
        f" host = coalesce(:host, host), last_seen_at = :now WHERE {_OF_GATEWAY}",
        values,
    )
    return True


def touch_gateways(connection: Connection, tenant: str, hosts: Mapping[str, str | None]) -> None:
    """Update the time at which gateways were last seen. A host that is None stays unchanged."""
    now = utc_now()
    for gateway_id, host in hosts.items():
        connection.execute(
            f"UPDATE gateways SET last_seen_at = :now, host = coalesce(:host, host) WHERE {_OF_GATEWAY}",
            {"tenant": tenant, "gateway_id": gateway_id, "host": host, "now": now},
        )


def list_gateways(connection: Connection, tenant: str) -> list[GatewayRecord]:
    rows = connection.rows(
        "SELECT gateway_id, host, label, CASE WHEN secret_hash <> '' THEN 'secret' WHEN owner <> '' THEN 'token' END"
        " AS bound_by, first_seen_at, last_seen_at FROM gateways WHERE tenant = ? ORDER BY gateway_id",
        (tenant,),
    )
    return [GatewayRecord(**row) for row in rows]


def release_gateway(connection: Connection, tenant: str, gateway_id: str) -> bool:
    """Release an id, so that the next client that claims it gets it. Its deliveries stay recorded."""
    sql = f"UPDATE gateways SET secret_hash = NULL, owner = NULL WHERE {_OF_GATEWAY}"
    return bool(connection.execute(sql, {"tenant": tenant, "gateway_id": gateway_id}))


def add_token(connection: Connection, token: BootstrapToken, token_hash: str) -> None:
    connection.insert("server_tokens", {**asdict(token), "hash": token_hash})


def find_token(connection: Connection, token_hash: str) -> BootstrapToken | None:
    found = connection.row(f"SELECT {_TOKEN_COLUMNS} FROM server_tokens WHERE hash = ?", (token_hash,))
    return BootstrapToken(**found) if found else None


def list_tokens(connection: Connection) -> list[BootstrapToken]:
    """Return all tokens, oldest first."""
    rows = connection.rows(f"SELECT {_TOKEN_COLUMNS} FROM server_tokens ORDER BY created_at, id")
    return [BootstrapToken(**row) for row in rows]


def revoked_token_ids(connection: Connection) -> frozenset[str]:
    return frozenset(connection.values("SELECT id FROM server_tokens WHERE revoked_at IS NOT NULL"))


def revoke_tokens(connection: Connection, id_or_label: str) -> list[str]:
    """Revoke the token with that id, or else all tokens with that label, and return their ids."""
    ids = connection.values(
        "SELECT id FROM server_tokens WHERE (id = :named OR label = :named) AND revoked_at IS NULL ORDER BY created_at",
        {"named": id_or_label},
    )
    if id_or_label in ids:
        ids = [id_or_label]
    for token_id in ids:
        connection.execute("UPDATE server_tokens SET revoked_at = ? WHERE id = ?", (utc_now(), token_id))
    return ids


def touch_token(connection: Connection, token_id: str) -> None:
    connection.execute("UPDATE server_tokens SET last_used_at = ? WHERE id = ?", (utc_now(), token_id))
