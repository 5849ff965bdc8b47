"""The jars that the engine adds to Spark's own: pinned in `jars.lock.toml`, downloaded once, then used offline.

They are in `<cache>/jars/<key>/`. The key is a hash of their versions and hashes. `verified.json` in the same folder
records the size and mtime of each file when its hash was verified. The folder is renamed into place after all files are
verified and durable, so it is complete or absent. A lock on `<cache>/jars/.lock` serializes installations.

Downloads use the Apache Ivy that PySpark includes, and Ivy's default repository. The user's Ivy configuration applies:
`~/.ivy2/ivysettings.xml` (mirrors, credentials) is used if it exists, and an existing `~/.ivy2` is used as the cache.
Otherwise the cache is a temporary folder. Proxies are taken from the usual environment variables.

@ref engine#start
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import threading
import time
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as once
from importlib import resources
from pathlib import Path
from xml.sax.saxutils import quoteattr

from hypaware.engine import jvm
from hypaware.errors import NotReady
from hypaware.home import durable_files
from hypaware.home.locks import locked

Progress = Callable[[str, float, float], None]
"""Called with a message, the bytes done and the total bytes."""
_STAMP_NAME = "verified.json"
_STAGING = ".staging-"
_POLL_SECONDS = 0.2
_CONNECT_MS, _READ_MS = 20_000, 60_000
# Delays before retries, for a busy mirror or a lost connection.
_RETRY_DELAYS = (1.0, 5.0)
_NO_NETWORK = "UnknownHost"


@dataclass(frozen=True)
class Jar:
    organisation: str
    name: str
    version: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


Fetch = Callable[[Sequence[Jar], Path, Progress], None]
"""Downloads the jars into the folder under their file names, or raises NotReady (`jars_unavailable`)."""


@dataclass(frozen=True)
class InstalledJars:
    paths: tuple[Path, ...]
    fetched: bool
    """False if all of them were already installed."""


@once
def locked_jars() -> tuple[Jar, ...]:
    text = resources.files("hypaware.engine").joinpath("jars.lock.toml").read_text(encoding="utf-8")
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


@once
def shared_jars() -> tuple[Jar, ...]:
    """Return the jars that only a shared lake needs: the S3 client of Iceberg."""
    text = resources.files("hypaware.engine").joinpath("shared-jars.lock.toml").read_text(encoding="utf-8")
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


def jar_folder(cache: Path, jars: Sequence[Jar]) -> Path:
    pinned = "\n".join(f"{jar.organisation}:{jar.name}:{jar.version}:{jar.sha256}" for jar in jars)
    return cache / "jars" / hashlib.sha256(pinned.encode()).hexdigest()[:16]


def find_installed_jars(cache: Path, jars: Sequence[Jar] | None = None) -> tuple[Path, ...]:
    """Return the installed jars, without network access. Only files changed since verification are hashed."""
    jars = locked_jars() if jars is None else jars
    where = jar_folder(cache, jars)
    if problems := _unverified(where, jars):
        raise NotReady(
            f"the engine's jars are not installed in {where} ({', '.join(problems)})",
            kind="engine_not_installed",
            repair="hyp engine install",
        )
    return tuple(where / jar.file_name for jar in jars)


def install_jars(
    cache: Path, progress: Progress, *, fetch: Fetch | None = None, jars: Sequence[Jar] | None = None
) -> InstalledJars:
    """Download and verify missing jars. A damaged installation is replaced."""
    jars = locked_jars() if jars is None else jars
    durable_files.make_dir(cache / "jars")
    with locked(cache / "jars" / ".lock"):
        where = jar_folder(cache, jars)
        if not _unverified(where, jars):
            return InstalledJars(tuple(where / jar.file_name for jar in jars), fetched=False)
        _sweep(cache / "jars")
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=cache / "jars"))
        try:
            (fetch or fetch_with_ivy)(jars, staging, progress)
            verify_jars(staging, jars)
            for jar in jars:
                durable_files.fsync_file(staging / jar.file_name)
            shutil.rmtree(staging / ".ivy", ignore_errors=True)
            seen = {jar.file_name: (staging / jar.file_name).stat() for jar in jars}
            stamp = {name: [status.st_size, status.st_mtime_ns] for name, status in seen.items()}
            durable_files.write_atomic(staging / _STAMP_NAME, json.dumps(stamp, indent=1).encode())
            if where.exists():
                where.rename(Path(tempfile.mkdtemp(prefix=_STAGING, dir=cache / "jars")))
            durable_files.rename_durably(staging, where)
        finally:
            _sweep(cache / "jars")
    total = _total_size(jars)
    progress("jars verified", total, total)
    return InstalledJars(tuple(where / jar.file_name for jar in jars), fetched=True)


def verify_jars(where: Path, jars: Sequence[Jar]) -> None:
    """Compare the hash of every jar with the lock file."""
    for jar in jars:
        path = where / jar.file_name
        try:
            found = _sha256(path)
        except FileNotFoundError:
            raise NotReady(
                f"the repository did not provide {jar.file_name}",
                kind="jars_unavailable",
                repair="hyp engine install",
            ) from None
        if found != jar.sha256:
            raise NotReady(
                f"{jar.file_name} has the hash {found}, but the lock file has {jar.sha256}: it is not the released "
                "file and was not installed. Check the mirror, the proxy or the Ivy cache, then try again",
                kind="jars_hash_mismatch",
                repair="hyp engine install",
            )


def _unverified(where: Path, jars: Sequence[Jar]) -> list[str]:
    """Return a description of each missing or damaged jar. A file that matches the stamp is not hashed."""
    try:
        stamp = json.loads((where / _STAMP_NAME).read_bytes())
    except (OSError, ValueError):
        stamp = {}
    problems = []
    for jar in jars:
        path = where / jar.file_name
        try:
            status = path.stat()
        except FileNotFoundError:
            problems.append(f"{jar.file_name} is missing")
            continue
        unchanged = stamp.get(jar.file_name) == [status.st_size, status.st_mtime_ns]
        if status.st_size != jar.size or not (unchanged or _sha256(path) == jar.sha256):
            problems.append(f"{jar.file_name} is damaged")
    return problems


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(parent: Path) -> None:
    """Remove the leftovers of a killed installation. The caller must hold the lock."""
    for leftover in parent.glob(f"{_STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def fetch_with_ivy(jars: Sequence[Jar], into: Path, progress: Progress, *, settings: Path | None = None) -> None:
    """Download the jars into the folder `into`, under their file names, without verifying them."""
    if set("[]()") & set(str(into)):  # they have a special meaning in Ivy patterns
        raise NotReady(
            f"the path of the cache folder {into} must not contain brackets",
            kind="jars_unavailable",
            repair="export HYP_CACHE=…",
        )
    work = into / ".ivy"
    work.mkdir()
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)} "
        'transitive="false" conf="*->master"/>\n'
        for jar in jars
    )
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="hypaware" module="engine"/>\n'
        f"<dependencies>\n{dependencies}</dependencies></ivy-module>\n",
        encoding="utf-8",
    )
    user_ivy = Path.home() / ".ivy2"
    if settings is None and (user_ivy / "ivysettings.xml").is_file():
        settings = user_ivy / "ivysettings.xml"
    command = [
        str(jvm.find_java().executable),
        f"-Duser.home={Path.home()}",
        f"-Dsun.net.client.defaultConnectTimeout={_CONNECT_MS}",
        f"-Dsun.net.client.defaultReadTimeout={_READ_MS}",
        *proxy_options(urllib.request.getproxies()),
        *("-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
        *(("-settings", str(settings)) if settings else ()),
        *(() if user_ivy.is_dir() else ("-cache", str(work / "cache"))),
        *("-ivy", str(work / "ivy.xml"), "-types", "jar", "-warn"),
        *("-retrieve", f"{into}/[artifact]-[revision].[ext]"),
    ]
    for pause in (*_RETRY_DELAYS, None):
        code, output = _run_ivy(command, jars, into, progress)
        if code == 0:
            return
        if pause is None or _NO_NETWORK in output:
            break
        progress("retrying the download of the engine's jars", _bytes_arrived(into), _total_size(jars))
        time.sleep(pause)
    raise NotReady(
        f"the engine's jars could not be downloaded: {ivy_failure(output)}. This needs network access once; behind a "
        "proxy set HTTPS_PROXY, or configure a mirror in ~/.ivy2/ivysettings.xml",
        kind="jars_unavailable",
        repair="hyp engine install",
    )


def _ivy_jar() -> Path:
    folder = jvm.spark_jars_folder()
    for found in sorted(folder.glob("ivy-*.jar")):
        return found
    raise NotReady(
        f"Ivy is missing in {folder}", kind="pyspark_missing", repair="pip install --force-reinstall pyspark"
    )


def _run_ivy(command: Sequence[str], jars: Sequence[Jar], into: Path, progress: Progress) -> tuple[int, str]:
    total = _total_size(jars)
    # In its own session, so that Ctrl-C reaches only this process, which then ends Ivy.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=into,
        start_new_session=True,
    ) as process:
        output: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lambda pipe: output.append(pipe.read()), args=(process.stdout,), daemon=True)
        reader.start()
        try:
            while process.poll() is None:
                progress("downloading the engine's jars", min(_bytes_arrived(into), total), total)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
        except BaseException:
            process.kill()
            raise
        reader.join()
    return process.returncode, "".join(output)


def _total_size(jars: Sequence[Jar]) -> float:
    return float(sum(jar.size for jar in jars))


def _bytes_arrived(into: Path) -> float:
    """Return the bytes downloaded so far. Partial jars are in Ivy's cache as `.jar.part`."""
    size = 0.0
    for path in (into / ".ivy").rglob("*.jar*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def ivy_failure(output: str) -> str:
    """Extract the error from Ivy's output."""
    signs = ("not found", _NO_NETWORK, "Exception", "refused", "timed out")
    lines = [line.strip(" \t:") for line in output.splitlines()]
    errors = [line for line in lines if any(sign in line for sign in signs)]
    return "; ".join(dict.fromkeys(errors[:3])) or "Ivy gave no reason"


def proxy_options(proxies: dict[str, str]) -> list[str]:
    options = []
    for scheme in ("http", "https"):
        proxy = urllib.parse.urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or (443 if proxy.scheme == 'https' else 80)}")
    if exceptions := proxies.get("no"):
        hosts = (host.strip() for host in exceptions.split(","))
        options.append(
            "-Dhttp.nonProxyHosts=" + "|".join(f"*{host}" if host.startswith(".") else host for host in hosts if host)
        )
    return options
