"""A team's lake on one machine: PostgreSQL, an S3 server, a Spark cluster, two receivers and a flusher, until Ctrl-C.

    python -m demo.team          # or: make team

Everything is in a temporary folder, listens on loopback only, and is started from packages:

    <folder>/receiver-1, receiver-2   homes of servers that only receive, behind one address
    <folder>/flusher                  home of the machine that runs jobs on the cluster
    <folder>/laptop                   home of a machine with a lake of its own, which delivers to that address
    <folder>/environment              the password and the keys, to read into a shell before using the flusher

The workers see neither the homes nor the folder of the S3 server, if this user may mount (`unshare -m`), so they are
like machines that share nothing but the network. At the end, every process is stopped by its pid.
"""

from __future__ import annotations

import json
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from demo.console import bold, say
from demo.stage import HYP, ignore_signals, temporary_folder
from tests.support.balancer import balanced
from tests.support.command import Hyp
from tests.support.rows import DATASET, rows
from tests.support.shared_lake import ENVIRONMENT, shared_lake_servers
from tests.support.spark_cluster import can_hide_folders, cluster

ROWS = 300
RECEIVERS = ("receiver-1", "receiver-2")
# Seconds until received rows are committed, if nobody runs `hyp flush` before.
FLUSH_INTERVAL = "30s"

NEXT = """
In another terminal, a machine of the team records rows and delivers them to the receivers:

   source .venv/bin/activate
   export HYP_HOME={folder}/laptop
   hyp config set sinks.team '{sink}'
   hyp ingest {dataset} {folder}/rows.jsonl
   hyp export

They become visible in the team's lake after a flush, which the flusher also does every {interval}. The job runs on
the cluster ({master}), and its tasks write to the bucket:

   . {folder}/environment
   export HYP_HOME={folder}/flusher
   hyp flush
   hyp query sql "SELECT gateway_id, count(*) AS parts FROM {dataset} GROUP BY gateway_id"
   hyp server status

Stop a receiver (kill {pid}) and run the first part again with other rows: the other one takes them. All logs are in
{folder}. docs/team.md describes the same on several machines.
"""


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with temporary_folder(keep=False) as folder, team(folder) as text:
            say(text, bold("Running. Ctrl-C stops everything and removes the folder."))
            signal.pause()
    except KeyboardInterrupt:
        say("", "Everything is stopped.")
    return 0


@contextmanager
def team(folder: Path) -> Iterator[str]:
    """Start all parts, and yield what to try with them."""
    with ExitStack() as running:
        _say("PostgreSQL and an S3 server")
        servers = running.enter_context(shared_lake_servers(folder))
        homes = {name: servers.machine(name) for name in (*RECEIVERS, "flusher")}
        laptop = _make_laptop(folder)
        _say("a Spark master and two workers")
        hidden = [*(each.home for each in (*homes.values(), laptop)), servers.s3.buckets]
        master = running.enter_context(_start_cluster(folder, hidden))
        _use_cluster(folder, homes["flusher"], master)
        _say("two receivers behind one address, and a server that flushes")
        started = [running.enter_context(_run_server(folder, homes[name], "--no-flush")) for name in RECEIVERS]
        address = running.enter_context(balanced([port for _, port in started]))
        token = folder / "token"
        token.write_text(homes[RECEIVERS[0]].ok("server", "token", "create", "--label", "laptops")["token"])
        for home in (homes["flusher"], laptop):
            running.callback(home.run, "engine", "stop")
        running.enter_context(_run_server(folder, homes["flusher"]))
        _write_environment(folder)
        # A second Ctrl-C must not leave a process behind.
        running.callback(ignore_signals)
        yield NEXT.format(
            folder=folder,
            dataset=DATASET,
            interval=FLUSH_INTERVAL,
            master=master,
            pid=started[0][0].pid,
            sink=f'{{ kind = "forward", url = "{address}", token_file = "{token}" }}',
        )


def _say(what: str) -> None:
    say(f"Starting {what} …")


def _make_laptop(folder: Path) -> Hyp:
    home = folder / "laptop"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[engine]\nmemory = "512m"\n')
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows(ROWS)))
    return Hyp(home)


@contextmanager
def _start_cluster(folder: Path, hidden: list[Path]) -> Iterator[str]:
    secret = folder / "cluster-secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    if not can_hide_folders(folder / "tried"):
        hidden = []
    with cluster(folder / "cluster", workers=2, cores=1, secret=secret.read_text(), hidden=hidden) as master:
        yield master


def _use_cluster(folder: Path, flusher: Hyp, master: str) -> None:
    flusher.ok("config", "set", "engine.master", master)
    flusher.ok("config", "set", "engine.secret_file", str(folder / "cluster-secret"))
    for name in ("interval", "cold_interval"):
        flusher.ok("config", "set", f"flush.{name}", FLUSH_INTERVAL)


@contextmanager
def _run_server(folder: Path, hyp: Hyp, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a server on a free port, and yield its process and the port."""
    command = [str(HYP), "server", "run", "--listen", "127.0.0.1:0", *options]
    log_path = folder / f"{hyp.home.name}.log"
    with (
        open(log_path, "wb") as log,
        subprocess.Popen(
            command, env=hyp.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        try:
            assert process.stdout is not None
            said = process.stdout.readline().decode().strip()
            port = urlsplit(said.removeprefix("listening on ")).port
            assert port, f"{shlex.join(command)}: {log_path.read_text()}"
            yield process, port
        finally:
            process.terminate()


def _write_environment(folder: Path) -> None:
    path = folder / "environment"
    path.touch(mode=0o600)
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in ENVIRONMENT.items()))


if __name__ == "__main__":
    sys.exit(main())
