"""Bootstrap tokens of a server. The state stores the hash of a token, never the token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, or_, select, update

from hypaware.state import streams, tables

_tokens = tables.server_tokens


@dataclass(frozen=True)
class Token:
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


_COLUMNS = [_tokens.c[name] for name in Token.__dataclass_fields__]


def add(connection: Connection, token: Token, token_hash: str) -> None:
    values = {name: getattr(token, name) for name in Token.__dataclass_fields__}
    connection.execute(insert(_tokens).values(hash=token_hash, **values))


def find(connection: Connection, token_hash: str) -> Token | None:
    found = connection.execute(select(*_COLUMNS).where(_tokens.c.hash == token_hash)).first()
    return Token(*found) if found is not None else None


def all_tokens(connection: Connection) -> list[Token]:
    """Return all tokens, oldest first."""
    found = connection.execute(select(*_COLUMNS).order_by(_tokens.c.created_at, _tokens.c.id))
    return [Token(*row) for row in found]


def revoked_ids(connection: Connection) -> frozenset[str]:
    return frozenset(connection.execute(select(_tokens.c.id).where(_tokens.c.revoked_at.is_not(None))).scalars())


def revoke(connection: Connection, id_or_label: str) -> list[str]:
    """Revoke the token with that id, or else all tokens with that label, and return their ids."""
    named = or_(_tokens.c.id == id_or_label, _tokens.c.label == id_or_label)
    active = select(_tokens.c.id).where(named, _tokens.c.revoked_at.is_(None)).order_by(_tokens.c.created_at)
    ids = list(connection.execute(active).scalars())
    if id_or_label in ids:
        ids = [id_or_label]
    connection.execute(update(_tokens).where(_tokens.c.id.in_(ids)).values(revoked_at=streams.now()))
    return ids


def used(connection: Connection, token_id: str) -> None:
    connection.execute(update(_tokens).where(_tokens.c.id == token_id).values(last_used_at=streams.now()))
