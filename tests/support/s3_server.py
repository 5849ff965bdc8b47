"""A real S3 server (S3Proxy) in a separate process on loopback, with its buckets in a folder.

    with S3Server(tmp_path) as server:
        server.make_bucket("bucket")
        options = server.options("bucket", "prefix")        # of a blob sink
        server.kill(); server.start()                       # the same address, the same buckets

It checks signatures, and exactly one of several concurrent create-only puts succeeds. Its jar is pinned in
`fixtures/test-jars.lock.toml` and fetched once, like the engine's, into the same cache.
"""

from __future__ import annotations

import http.client
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.sax.saxutils import quoteattr

from hypaware.engine import jars, jvm
from hypaware.engine.jars import Jar, Progress
from hypaware.engine.jvm import spark_jars_folder
from hypaware.home import cache_dir
from tests.support.ports import hold_port
from tests.support.processes import PATIENCE

_LOCK = Path(__file__).parents[1] / "fixtures" / "test-jars.lock.toml"
# A network may fail once.
_TRIES = 3
ACCESS_KEY_ENV, SECRET_KEY_ENV = "TEST_S3_ACCESS_KEY", "TEST_S3_SECRET_KEY"
ENVIRONMENT = {ACCESS_KEY_ENV: "test-access-key", SECRET_KEY_ENV: "test-secret-key"}


class S3Server:
    access_key, secret_key = ENVIRONMENT.values()

    def __init__(self, folder: Path) -> None:
        self.buckets = folder / "buckets"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._holder, self.port = hold_port()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self, bucket: str, prefix: str = "", **more: Any) -> dict[str, Any]:
        """Return the options of a blob sink for a process with `ENVIRONMENT`."""
        return {
            "destination": f"s3://{bucket}/{prefix}",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_env": ACCESS_KEY_ENV,
            "secret_key_env": SECRET_KEY_ENV,
            **more,
        }

    def make_bucket(self, name: str) -> Path:
        """Return the folder of a bucket; an object's key is a path in it."""
        (self.buckets / name).mkdir(parents=True)
        return self.buckets / name

    def start(self) -> None:
        self.buckets.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "s3proxy.properties"
        settings.write_text(
            f"s3proxy.endpoint={self.endpoint}\n"
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={self.access_key}\n"
            f"s3proxy.credential={self.secret_key}\n"
            "jclouds.provider=filesystem-nio2\n"
            f"jclouds.filesystem.basedir={self.buckets}\n",
            encoding="utf-8",
        )
        command = [
            str(jvm.find_java().executable),
            *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-jar", str(jar()), "--properties", str(settings)),
        ]
        with open(self._folder / "s3proxy.log", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_until_it_answers()

    def kill(self) -> None:
        """Kill it at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
        self._holder.close()

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            log = (self._folder / "s3proxy.log").read_text(encoding="utf-8", errors="replace")
            assert self._process.poll() is None, f"the S3 server ended:\n{log}"
            assert time.monotonic() < deadline, f"the S3 server does not answer:\n{log}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()
        return True


@cache
def jar() -> Path:
    """Fetch the jar unless it is in the cache."""
    (entry,) = tomllib.loads(_LOCK.read_text(encoding="utf-8"))["jar"]
    classifier = entry.pop("classifier")

    def fetch(wanted: Sequence[Jar], into: Path, progress: Progress) -> None:
        _fetch(wanted[0], classifier, into)

    (path,) = jars.install_jars(cache_dir(), lambda message, done, total: None, fetch=fetch, jars=[Jar(**entry)]).paths
    return path


def _fetch(wanted: Jar, classifier: str, into: Path) -> None:
    """Use the Ivy of PySpark: the engine's own download does not support classifiers."""
    work = into / ".ivy"
    work.mkdir()
    coordinates = f"org={quoteattr(wanted.organisation)} name={quoteattr(wanted.name)} rev={quoteattr(wanted.version)}"
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="hypaware" module="tests"/><dependencies><dependency {coordinates} transitive="false" '
        f'conf="*->master"><artifact name={quoteattr(wanted.name)} type="jar" ext="jar" '
        f"m:classifier={quoteattr(classifier)}/></dependency></dependencies></ivy-module>\n",
        encoding="utf-8",
    )
    users = Path.home() / ".ivy2"
    (ivy_jar,) = spark_jars_folder().glob("ivy-*.jar")
    command = [
        *(
            str(jvm.find_java().executable),
            f"-Duser.home={Path.home()}",
            *jars.proxy_options(urllib.request.getproxies()),
        ),
        *("-Dsun.net.client.defaultConnectTimeout=20000", "-Dsun.net.client.defaultReadTimeout=60000"),
        *("-cp", str(ivy_jar), "org.apache.ivy.Main"),
        *(("-settings", str(users / "ivysettings.xml")) if (users / "ivysettings.xml").is_file() else ()),
        *(() if users.is_dir() else ("-cache", str(work / "cache"))),
        *("-ivy", str(work / "ivy.xml"), "-types", "jar", "-warn"),
        *("-retrieve", f"{into}/[artifact]-[revision].[ext]"),
    ]
    for _ in range(_TRIES):
        done = subprocess.run(command, capture_output=True, text=True, cwd=into, check=False)
        if done.returncode == 0:
            return
    raise AssertionError(jars.ivy_failure(done.stdout + done.stderr))
