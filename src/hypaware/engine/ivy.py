"""Fetches jars with the Apache Ivy that PySpark carries. No repository is named here: Ivy's own default applies.

A user's Ivy is honoured: `~/.ivy2/ivysettings.xml` (mirrors, credentials) is used where it exists, and so is an
existing `~/.ivy2` as the cache; without one, the cache is a temporary folder and the home stays clean. Proxies come
from the usual environment variables.
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

_LOOK_EVERY = 0.2
_CONNECT_MS, _READ_MS = 20_000, 60_000
# A mirror that is busy, or a connection that was cut, is asked again.
_PAUSES = (1.0, 5.0)
_NO_NETWORK = "UnknownHost"


def fetch(jars: Sequence[Jar], into: Path, progress: Progress, *, settings: Path | None = None) -> None:
    """Leaves the jars in `into` under their file names, unverified."""
    work = into / ".ivy"
    work.mkdir()
    (work / "ivy.xml").write_text(_module(jars), encoding="utf-8")
    users = Path.home() / ".ivy2"
    if settings is None and (users / "ivysettings.xml").is_file():
        settings = users / "ivysettings.xml"
    command = [
        str(java.find().executable),
        f"-Duser.home={Path.home()}",
        f"-Dsun.net.client.defaultConnectTimeout={_CONNECT_MS}",
        f"-Dsun.net.client.defaultReadTimeout={_READ_MS}",
        *proxy_options(urllib.request.getproxies()),
        *("-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
        *(("-settings", str(settings)) if settings else ()),
        *(() if users.is_dir() else ("-cache", str(work / "cache"))),
        *("-ivy", str(work / "ivy.xml"), "-types", "jar", "-warn"),
        *("-retrieve", f"{_literal(into)}/[artifact]-[revision].[ext]"),
    ]
    for pause in (*_PAUSES, None):
        code, output = _run(command, jars, into, progress)
        if code == 0:
            return
        if pause is None or _NO_NETWORK in output:
            break
        progress("fetching the engine's jars again", _bytes_arrived(into), _size(jars))
        time.sleep(pause)
    raise NotReady(
        f"the engine's jars could not be fetched: {reason(output)}. It needs the network once; behind a proxy "
        "set HTTPS_PROXY, for a mirror write your own ~/.ivy2/ivysettings.xml",
        kind="jars_unavailable",
        repair="hyp engine install",
    )


def _module(jars: Sequence[Jar]) -> str:
    wanted = "".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)} "
        'transitive="false" conf="*->master"/>\n'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="hypaware" module="engine"/>\n'
        f"<dependencies>\n{wanted}</dependencies></ivy-module>\n"
    )


def _run(command: Sequence[str], jars: Sequence[Jar], into: Path, progress: Progress) -> tuple[int, str]:
    total = _size(jars)
    # Its own session: Ctrl-C reaches us alone, and we end it.
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
                progress("fetching the engine's jars", min(_bytes_arrived(into), total), total)
                try:
                    code = process.wait(_LOOK_EVERY)
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
    """Jars on their way lie in Ivy's cache as `.jar.part`, and for a moment both there and in the target."""
    done = 0
    for path in (into / ".ivy").rglob("*.jar*"):
        try:
            done += path.stat().st_size
        except FileNotFoundError:
            continue
    return float(done)


def _ivy_jar() -> Path:
    for found in sorted(spark_jars().glob("ivy-*.jar")):
        return found
    raise NotReady(
        f"there is no Ivy in {spark_jars()}", kind="pyspark_missing", repair="pip install --force-reinstall pyspark"
    )


def reason(output: str) -> str:
    """What Ivy said went wrong, without its table and its dots."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    telling = [
        line
        for line in lines
        if any(sign in line for sign in ("not found", "UnknownHost", "Exception", "refused", "timed out"))
    ]
    return "; ".join(dict.fromkeys(telling[:3])) or "Ivy gave no reason"


def _literal(path: Path) -> str:
    """Ivy reads [..] and (..) in a pattern as its own."""
    text = str(path)
    if any(sign in text for sign in "[]()"):
        raise NotReady(
            f"the cache folder {text} must not have brackets in its name",
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
