"""Bootstrap tokens of a server, as the state holds them: by hash, never the token itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, insert, or_, select, update

from hypaware.state import tables

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
        """Why nobody may enrol with it any more."""
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
    """Oldest first."""
    found = connection.execute(select(*_COLUMNS).order_by(_tokens.c.created_at, _tokens.c.id))
    return [Token(*row) for row in found]


def revoked_ids(connection: Connection) -> frozenset[str]:
    return frozenset(connection.execute(select(_tokens.c.id).where(_tokens.c.revoked_at.is_not(None))).scalars())


def revoke(connection: Connection, id_or_label: str) -> list[str]:
    """The ids of the tokens that this ended: the one with that id, else all with that label."""
    named = or_(_tokens.c.id == id_or_label, _tokens.c.label == id_or_label)
    alive = select(_tokens.c.id).where(named, _tokens.c.revoked_at.is_(None)).order_by(_tokens.c.created_at)
    ids = list(connection.execute(alive).scalars())
    if id_or_label in ids:
        ids = [id_or_label]
    connection.execute(update(_tokens).where(_tokens.c.id.in_(ids)).values(revoked_at=_now()))
    return ids


def used(connection: Connection, token_id: str) -> None:
    connection.execute(update(_tokens).where(_tokens.c.id == token_id).values(last_used_at=_now()))


def _now() -> str:
    return datetime.now(UTC).isoformat()
