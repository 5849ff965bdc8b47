"""`hyp server`: run the central receiver, and manage its tokens and gateways."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hypaware import extras, text
from hypaware.cli import output
from hypaware.cli.command import Group, RunnableGroup, json_option, parse_duration
from hypaware.gateway.handover import SERVER_PORT
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.server.status import ServerStatus

_DEFAULT_LISTEN = f"127.0.0.1:{SERVER_PORT}"
_DEFAULT_PAGE = f"127.0.0.1:{SERVER_PORT + 1}"
_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("server", cls=Group, examples=["hyp server token create --label alice", "hyp server run"])
def server() -> None:
    """Receive the sessions of other machines into the lake of this home. Needs the extra `hypaware[server]`."""
    extras.require("server")


@server.command(
    "run",
    examples=[
        "hyp server run",
        "hyp server run --listen 0.0.0.0:18522 --tls-cert server.pem --tls-key server.key",
        "hyp server run --page",
    ],
)
@click.option(
    "--listen",
    default=_DEFAULT_LISTEN,
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Listen on this address; port 0 picks a free port.",
)
@click.option("--tls-cert", type=_file, help="Serve HTTPS with this certificate chain (PEM).")
@click.option("--tls-key", type=_file, help="Use this private key of the certificate (PEM).")
@click.option("--no-flush", is_flag=True, help="Receive only; you run hyp flush and hyp maintain yourself.")
@click.option(
    "--page",
    is_flag=False,
    flag_value=_DEFAULT_PAGE,
    metavar="[ADDRESS:PORT]",
    help=f"Show the lake in the browser, read-only, to people who sign in. Without a value: on {_DEFAULT_PAGE}.",
)
@click.option(
    "--page-host",
    multiple=True,
    metavar="NAME",
    help="Answer under this host name; can be repeated.  [default: the address of --page]",
)
@click.option(
    "--page-user-header",
    metavar="HEADER",
    help="Read the name of the person from this header, which the proxy of --page-proxy sets.",
)
@click.option(
    "--page-proxy",
    multiple=True,
    metavar="CIDR",
    help="Trust the proxy at this address or network, which serves HTTPS; can be repeated.",
)
def run(
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    no_flush: bool,
    page: str | None,
    page_host: tuple[str, ...],
    page_user_header: str | None,
    page_proxy: tuple[str, ...],
) -> None:
    """Run the server in the foreground until it is stopped. Only one runs per home; a shared lake may have many homes.

    A batch is acknowledged once it is durable. Received rows are committed to the lake every `flush.interval`, and the
    lake is maintained every `maintain.interval`. On SIGTERM or Ctrl-C, requests in progress are completed first.

    With --page, people who sign in with a viewer token (`hyp server token create --viewer`), or through a proxy that
    authenticates them, see all sessions but those that the privacy settings of this home withhold.
    """
    from hypaware.server import run as process
    from hypaware.server.page import TeamPageOptions

    home = Home.from_environment()
    host, port = _read_address("--listen", listen, _DEFAULT_LISTEN)
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key must be given together")
    shown: TeamPageOptions | None = None
    if page is not None:
        page_at = _read_address("--page", page, _DEFAULT_PAGE)
        shown = TeamPageOptions(*page_at, page_host, page_user_header, page_proxy, tls_cert, tls_key)
        shown.to_rules()
    elif page_host or page_user_header or page_proxy:
        raise click.UsageError("--page-host, --page-user-header and --page-proxy need --page")
    options = process.ServerOptions(host, port, tls_cert, tls_key, page=shown, flush=not no_flush)
    # Print without buffering, because the parent process may wait for the line.
    process.run_server(home, options, lambda line: output.write_bytes(f"{line}\n".encode()))


def _read_address(option: str, given: str, example: str) -> tuple[str, int]:
    from hypaware.config.values import LISTEN

    try:
        host, _, port = LISTEN.read(given).rpartition(":")
    except ValueError:
        raise click.BadParameter(f"expected {LISTEN.expected}, for example {example}", param_hint=option) from None
    return host.strip("[]"), int(port)


@server.command("status", examples=["hyp server status", "hyp server status --days 30 --json"])
@click.option(
    "--days", type=click.IntRange(1, 3650), default=7, show_default=True, help="Count the rows of this many days."
)
@json_option
def status(days: int) -> None:
    """Show the machines and their lag, the rows of each day, the batches not yet flushed, and the bytes stored.

    A home with its own lake shows its own server; a home with a shared lake shows all servers of that lake. The lag of
    a machine is the age of its oldest batch that was accepted and is not in the lake yet. Needs no running server.
    """
    from hypaware.server.status import read_server_status

    found = read_server_status(_existing_home(), days=days)
    if output.emit_document(found.as_json()):
        return
    _show_status(found)


def _existing_home() -> Home:
    """Return the home. Raise NotReady if there is none: only `run` and `token create` make one."""
    from hypaware.state.home_opener import read_identity

    home = Home.from_environment()
    read_identity(home, make=False)
    return home


def _show_status(found: ServerStatus) -> None:
    if not found.machines:
        output.emit("no machine has enrolled or delivered yet; to let one enrol: hyp server token create")
    else:
        rows = [
            [
                each.gateway_id,
                each.host,
                each.label,
                each.last_seen_at[:19],
                text.format_duration(each.lag_seconds) if each.uncommitted_rows else "none",
                each.uncommitted_rows,
                sum(each.rows_by_day.values()),
            ]
            for each in found.machines
        ]
        output.emit_table(["machine", "host", "label", "last seen (UTC)", "lag", "waiting", "rows"], rows)
    if found.days:
        output.emit()
        columns = ["day", "machines", "rows", "bytes"]
        output.emit_table(columns, [[each[column] for column in columns] for each in found.days])
    output.emit()
    waiting = found.uncommitted
    output.emit(
        f"waiting for a flush: {text.format_count(waiting['rows'], 'row')} in "
        f"{text.format_count(waiting['segments'], 'batch', 'batches')}, {text.format_size(waiting['bytes'])}"
        + (f", the oldest for {text.format_duration(waiting['lag_seconds'])}" if waiting["segments"] else "")
    )
    for each in found.storage:
        output.emit(
            f"{each.dataset}: {text.format_count(each.rows, 'row')}, {text.format_size(each.live_bytes)} live, "
            f"{text.format_size(each.stored_bytes)} stored"
        )
    output.emit(f"stored in all: {text.format_size(found.stored_bytes)}")


@server.group("token", cls=Group, examples=["hyp server token create --label alice", "hyp server token list"])
def token() -> None:
    """Create, list and revoke tokens. A machine needs one to enrol, and a person needs one to view the page."""


@token.command(
    "create",
    examples=[
        "hyp server token create --label alice",
        "hyp server token create --viewer --label alice",
        "hyp server token create --ttl 7d --json",
    ],
)
@click.option("--label", help="Name the owner. Use the same label for a token that replaces another.")
@click.option("--ttl", metavar="DURATION", help="Let the token expire after this time: 12h, 7d.  [default: never]")
@click.option("--viewer", is_flag=True, help="Create it for a person who views the page; it cannot enrol a machine.")
@json_option
def create(label: str | None, ttl: str | None, viewer: bool) -> None:
    """Create a token and print it: for machines that enrol, or with --viewer for a person. It cannot be shown again.

    The label of a token that enrols machines names their owner. The page shows their sessions under that name.
    """
    from hypaware.server import auth

    lifetime = None if ttl is None else parse_duration("--ttl", ttl)
    use: Literal["enrol", "view"] = "view" if viewer else "enrol"
    secret, token = auth.create_token(Home.from_environment(), label, lifetime, use=use)
    if output.emit_document({"token": secret, **auth.token_as_json(token)}):
        return
    output.emit(secret)
    output.note(f"{token.id}: save this token now; it cannot be shown again")


@token.command("list", examples=["hyp server token list", "hyp server token list --json"])
@json_option
def list_() -> None:
    """List the tokens, without their secrets. Use is `enrol` for machines and `view` for people."""
    from hypaware.server import auth

    home = Home.from_environment()
    found = [auth.token_as_json(each) for each in auth.list_tokens(home)] if home.root.is_dir() else []
    columns = ["id", "label", "use", "status", "created_at", "expires_at", "last_used_at"]
    _print_list("tokens", found, columns, "no tokens; to create one: hyp server token create")


@token.command("revoke", examples=["hyp server token revoke tok_0123456789ab", "hyp server token revoke alice"])
@click.argument("given", metavar="ID|LABEL")
@json_option
def revoke(given: str) -> None:
    """Revoke a token, or all tokens with a label. It ends the access of everyone who used it."""
    from hypaware.server import auth

    revoked = auth.revoke_token(_existing_home(), given)
    output.emit_result({"revoked": revoked}, f"revoked: {', '.join(revoked)}")


@server.group("gateways", cls=RunnableGroup, examples=["hyp server gateways", "hyp server gateways --json"])
@json_option
def gateways() -> None:
    """List the gateways that have enrolled or delivered."""
    from hypaware.server import auth

    home = Home.from_environment()
    found = [asdict(each) for each in auth.list_gateways(home)] if home.root.is_dir() else []
    columns = ["gateway_id", "host", "label", "bound_by", "first_seen_at", "last_seen_at"]
    _print_list("gateways", found, columns, "no gateway has enrolled or delivered yet")


@gateways.command("release", examples=["hyp server gateways release gw-0123456789abcdef"])
@click.argument("gateway_id", metavar="ID")
@json_option
def release(gateway_id: str) -> None:
    """Release the id of a machine that lost its secret. The next machine that enrols with this id owns it."""
    from hypaware.server import auth

    auth.release_gateway(_existing_home(), gateway_id)
    output.emit_result({"released": gateway_id}, f"{gateway_id} can enrol again")


def _print_list(name: str, found: list[dict[str, Any]], columns: list[str], if_empty: str) -> None:
    if output.emit_document({name: found}):
        return
    if found:
        output.emit_table(columns, [[each[column] for column in columns] for each in found])
    else:
        output.emit(if_empty)
