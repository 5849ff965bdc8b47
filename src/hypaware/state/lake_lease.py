"""The lease on a lake whose catalog is in PostgreSQL: which machine may commit.

The JVM that commits holds a session of the database with an advisory lock. If it is killed, the server ends the session
and the lock is free immediately. If it is stopped or cut off, the session and its lock remain, so the owner must also
renew the lease; when it has not done so for a while, by the server's clock, anyone may end its session.

Neither makes a commit safe: an owner that was stopped does not know that it lost the lease. So each owner gets a higher
*epoch*, every connection of its catalog carries the epoch as a setting of the session, and a trigger on the catalog's
table rejects a change under any other epoch, in the transaction of that change. A change and a takeover wait for each
other on the row of the lease: a commit lands before the takeover, and the new owner sees it, or it never lands.

The same check is part of each transaction of the owner on the state, if `PostgresDatabase` has its epoch: otherwise a
former owner could discard the flush that the new one is about to commit.

A machine that waits adds itself to `lake_waiters`. The owner gives the lease back when it is idle and another machine
waits, so machines take turns, and keeps its JVM if none waits.

The functions take `run`, which executes one statement on the session of the owner and returns its rows, because the
session is one of psycopg in a test and one of JDBC in the JVM that commits.

@ref engine#lease
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from hypaware.iceberg.catalog import EPOCH_SETTING, LEASE_LOST_SQLSTATE, TABLES, epoch_options
from hypaware.state.postgres_database import DEFAULT_SCHEMA, lock_number

Run = Callable[[str], Sequence[Sequence[Any]]]
LEASE_SECONDS = 30.0
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_WAITER_INTERVAL = "interval '15 seconds'"


def install_fence(run: Run, schema: str = DEFAULT_SCHEMA) -> None:
    """Create the table of leases, and the functions that reject changes by former owners."""
    require_epoch = f"""
        CREATE OR REPLACE FUNCTION {schema}.require_epoch(of_lake TEXT, own_epoch BIGINT) RETURNS VOID
        LANGUAGE plpgsql AS $$
        DECLARE
            current_epoch BIGINT;
        BEGIN
            SELECT epoch INTO current_epoch FROM {schema}.lake_leases WHERE lake = of_lake FOR SHARE;
            IF current_epoch IS DISTINCT FROM own_epoch THEN
                RAISE EXCEPTION 'only the machine that holds the lease on the lake % may change it', of_lake
                    USING ERRCODE = '{LEASE_LOST_SQLSTATE}';
            END IF;
        END $$"""
    reject_former_owner = f"""
        CREATE OR REPLACE FUNCTION {schema}.reject_former_owner() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            changed RECORD;
        BEGIN
            IF TG_OP = 'DELETE' THEN
                changed := OLD;
            ELSE
                changed := NEW;
            END IF;
            IF changed.catalog_name = TG_ARGV[1] THEN
                PERFORM {schema}.require_epoch(
                    TG_ARGV[0], nullif(current_setting('{EPOCH_SETTING}', true), '')::BIGINT);
            END IF;
            RETURN changed;
        END $$"""
    run("BEGIN")
    # Two sessions that create them at the same time do not see each other's.
    run(f"SELECT pg_advisory_xact_lock({lock_number(schema)})")
    run(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    run(
        f'CREATE TABLE IF NOT EXISTS {schema}.lake_leases (lake TEXT COLLATE "C" PRIMARY KEY, epoch BIGINT NOT NULL,'
        " owner TEXT NOT NULL, renewed_at TIMESTAMPTZ NOT NULL)"
    )
    # Not every time: it would wait for a commit that has begun, and everybody else for it.
    if not run(
        f"SELECT 1 FROM pg_attribute WHERE attrelid = '{schema}.lake_leases'::regclass AND attname = 'acquired_at'"
    ):
        run(f"ALTER TABLE {schema}.lake_leases ADD COLUMN acquired_at TIMESTAMPTZ")
    run(
        f'CREATE TABLE IF NOT EXISTS {schema}.lake_waiters (lake TEXT COLLATE "C", owner TEXT COLLATE "C",'
        " seen_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (lake, owner))"
    )
    run(require_epoch)
    run(reject_former_owner)
    run("COMMIT")


def guard_catalog(run: Run, lake: str, catalog: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Let only the owner of the lease change the tables of a catalog. The table of the catalog must exist."""
    _require_name(lake)
    _require_name(catalog)
    run(
        f"CREATE OR REPLACE TRIGGER reject_former_owner BEFORE INSERT OR UPDATE OR DELETE ON {TABLES}"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.reject_former_owner('{lake}', '{catalog}')"
    )


def try_acquire(run: Run, lake: str, owner: str, seconds: float, schema: str = DEFAULT_SCHEMA) -> int | None:
    """Take the lease and return its epoch, or return None while another owner has it.

    An owner that has not renewed it for so many seconds loses its session. The next call can then succeed.
    """
    _require_name(lake)
    _require_name(owner)
    lock, leases = lock_number(f"lake {schema} {lake}"), f"{schema}.lake_leases"
    run(
        f"INSERT INTO {leases} (lake, epoch, owner, renewed_at) VALUES ('{lake}', 0, '', '-infinity')"
        " ON CONFLICT DO NOTHING"
    )
    run("BEGIN")
    try:
        ((is_expired,),) = run(
            f"SELECT renewed_at < clock_timestamp() - interval '{seconds * 1000:.0f} milliseconds' FROM {leases}"
            f" WHERE lake = '{lake}' FOR UPDATE"
        )
        epoch = None
        if run(f"SELECT pg_try_advisory_lock({lock})")[0][0]:
            ((epoch,),) = run(
                f"UPDATE {leases} SET epoch = epoch + 1, owner = '{owner}', renewed_at = clock_timestamp(),"
                f" acquired_at = clock_timestamp() WHERE lake = '{lake}' RETURNING epoch"
            )
            run(f"DELETE FROM {schema}.lake_waiters WHERE lake = '{lake}' AND owner = '{owner}'")
        elif is_expired:
            run(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
                " AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                f" AND (classid::BIGINT << 32 | objid::BIGINT) = {lock}"
            )
        run("COMMIT")
    except BaseException:
        run("ROLLBACK")
        # The lock belongs to the session, not to the transaction.
        run(f"SELECT pg_advisory_unlock({lock})")
        raise
    return epoch


def renew(run: Run, lake: str, epoch: int, schema: str = DEFAULT_SCHEMA) -> bool:
    """Renew the lease, and report whether the epoch still holds it."""
    _require_name(lake)
    renewed = run(
        f"UPDATE {schema}.lake_leases SET renewed_at = clock_timestamp() WHERE lake = '{lake}' AND epoch = {epoch}"
        " RETURNING 1"
    )
    return bool(renewed)


@dataclass(frozen=True)
class LakeHolder:
    owner: str
    """The name of the machine, and the pid of its engine: `<host>-<pid>`."""
    since: datetime
    waiting: int = 0
    """How many others wait."""

    def __str__(self) -> str:
        host, _, pid = self.owner.rpartition("-")
        return f"process {pid} of {host}, since {self.since:%Y-%m-%d %H:%M:%S} UTC"


def own_name(pid: int | None = None) -> str:
    """Return the name of this process, or of another one of this machine, among those of all machines."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:40]
    return f"{host}-{pid or os.getpid()}"


def has_leases(run: Run, schema: str = DEFAULT_SCHEMA) -> bool:
    """Return whether an engine has created the tables of leases."""
    return bool(run(f"SELECT 1 WHERE to_regclass('{schema}.lake_waiters') IS NOT NULL"))


def find_holder(run: Run, lake: str, seconds: float, schema: str = DEFAULT_SCHEMA) -> LakeHolder | None:
    """Return who holds the lease, or None if it can be taken. The tables of leases may not exist yet."""
    _require_name(lake)
    if not has_leases(run, schema):
        return None
    lock = lock_number(f"lake {schema} {lake}")
    # The lock of a killed owner is gone; that of a stopped one is not, but its lease is not renewed.
    found = run(
        "SELECT owner, extract(epoch FROM acquired_at)::FLOAT8, (SELECT count(*) FROM"
        f" {schema}.lake_waiters WHERE lake = '{lake}' AND seen_at > clock_timestamp() - {_WAITER_INTERVAL})"
        f" FROM {schema}.lake_leases WHERE lake = '{lake}' AND acquired_at IS NOT NULL"
        f" AND renewed_at > clock_timestamp() - interval '{seconds * 1000:.0f} milliseconds'"
        " AND EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        f" AND (classid::BIGINT << 32 | objid::BIGINT) = {lock})"
    )
    for owner, since, waiting in found:
        return LakeHolder(owner, datetime.fromtimestamp(since, UTC), waiting)
    return None


def note_waiter(run: Run, lake: str, owner: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Note that this process waits for the lease. To be repeated every few seconds."""
    _require_name(lake)
    _require_name(owner)
    run(
        f"INSERT INTO {schema}.lake_waiters VALUES ('{lake}', '{owner}', clock_timestamp())"
        " ON CONFLICT (lake, owner) DO UPDATE SET seen_at = clock_timestamp()"
    )


def forget_waiter(run: Run, lake: str, owner: str, schema: str = DEFAULT_SCHEMA) -> None:
    _require_name(lake)
    _require_name(owner)
    run(f"DELETE FROM {schema}.lake_waiters WHERE lake = '{lake}' AND owner = '{owner}'")


def is_wanted(run: Run, lake: str, schema: str = DEFAULT_SCHEMA) -> bool:
    """Return whether another machine waits for the lease."""
    _require_name(lake)
    return bool(
        run(
            f"SELECT 1 FROM {schema}.lake_waiters WHERE lake = '{lake}'"
            f" AND seen_at > clock_timestamp() - {_WAITER_INTERVAL} LIMIT 1"
        )
    )


def forget_waiters(run: Run, lake: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Forget who has not waited for a long time."""
    _require_name(lake)
    run(f"DELETE FROM {schema}.lake_waiters WHERE lake = '{lake}' AND seen_at < clock_timestamp() - interval '1 hour'")


def fenced_jdbc_uri(uri: str, epoch: int) -> str:
    """Return the address of the catalog for the JVM that holds the lease under this epoch."""
    return f"{uri}{'&' if '?' in uri else '?'}options={quote(epoch_options(epoch))}"


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of a lake or an owner")
