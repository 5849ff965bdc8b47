"""Downloads jars with the Apache Ivy that PySpark includes, from Ivy's default repository.

The user's Ivy configuration applies: `~/.ivy2/ivysettings.xml` (mirrors, credentials) is used if it exists, and an
existing `~/.ivy2` is used as the cache. Otherwise the cache is a temporary folder. Proxies are taken from the usual
environment variables.
"""

from __future__ import annotations

import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from hypaware.engine import java
from hypaware.engine.spark_home import spark_jars
from hypaware.errors import NotReady

if TYPE_CHECKING:
    from hypaware.engine.jars import Jar, Progress

_POLL_SECONDS = 0.2
_CONNECT_MS, _READ_MS = 20_000, 60_000
# Delays before retries, for a busy mirror or a lost connection.
_RETRY_DELAYS = (1.0, 5.0)
_NO_NETWORK = "UnknownHost"


def fetch(jars: Sequence[Jar], into: Path, progress: Progress, *, settings: Path | None = None) -> None:
    """Download the jars into the folder `into`, under their file names, without verifying them."""
    work = into / ".ivy"
    work.mkdir()
    (work / "ivy.xml").write_text(_module(jars), encoding="utf-8")
    user_ivy = Path.home() / ".ivy2"
    if settings is None and (user_ivy / "ivysettings.xml").is_file():
        settings = user_ivy / "ivysettings.xml"
    command = [
        str(java.find().executable),
        f"-Duser.home={Path.home()}",
        f"-Dsun.net.client.defaultConnectTimeout={_CONNECT_MS}",
        f"-Dsun.net.client.defaultReadTimeout={_READ_MS}",
        *proxy_options(urllib.request.getproxies()),
        *("-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
        *(("-settings", str(settings)) if settings else ()),
        *(() if user_ivy.is_dir() else ("-cache", str(work / "cache"))),
        *("-ivy", str(work / "ivy.xml"), "-types", "jar", "-warn"),
        *("-retrieve", f"{_literal(into)}/[artifact]-[revision].[ext]"),
    ]
    for pause in (*_RETRY_DELAYS, None):
        code, output = _run(command, jars, into, progress)
        if code == 0:
            return
        if pause is None or _NO_NETWORK in output:
            break
        progress("retrying the download of the engine's jars", _bytes_arrived(into), _size(jars))
        time.sleep(pause)
    raise NotReady(
        f"the engine's jars could not be downloaded: {reason(output)}. This needs network access once; behind a proxy "
        "set HTTPS_PROXY, or configure a mirror in ~/.ivy2/ivysettings.xml",
        kind="jars_unavailable",
        repair="hyp engine install",
    )


def _module(jars: Sequence[Jar]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)} "
        'transitive="false" conf="*->master"/>\n'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="hypaware" module="engine"/>\n'
        f"<dependencies>\n{dependencies}</dependencies></ivy-module>\n"
    )


def _run(command: Sequence[str], jars: Sequence[Jar], into: Path, progress: Progress) -> tuple[int, str]:
    total = _size(jars)
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
            while True:
                progress("downloading the engine's jars", min(_bytes_arrived(into), total), total)
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.kill()
            raise
        reader.join()
    return code, "".join(output)


def _size(jars: Sequence[Jar]) -> float:
    return float(sum(jar.size for jar in jars))


def _bytes_arrived(into: Path) -> float:
    """Return the bytes downloaded so far. Partial jars are in Ivy's cache as `.jar.part`."""
    size = 0
    for path in (into / ".ivy").rglob("*.jar*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return float(size)


def _ivy_jar() -> Path:
    for found in sorted(spark_jars().glob("ivy-*.jar")):
        return found
    raise NotReady(
        f"Ivy is missing in {spark_jars()}", kind="pyspark_missing", repair="pip install --force-reinstall pyspark"
    )


def reason(output: str) -> str:
    """Extract the error from Ivy's output."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    errors = [
        line
        for line in lines
        if any(sign in line for sign in ("not found", "UnknownHost", "Exception", "refused", "timed out"))
    ]
    return "; ".join(dict.fromkeys(errors[:3])) or "Ivy gave no reason"


def _literal(path: Path) -> str:
    """Reject a path with brackets, which have a special meaning in Ivy patterns."""
    text = str(path)
    if any(sign in text for sign in "[]()"):
        raise NotReady(
            f"the path of the cache folder {text} must not contain brackets",
            kind="jars_unavailable",
            repair="export HYP_CACHE=…",
        )
    return text


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
