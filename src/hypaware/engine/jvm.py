"""The driver JVM: finds Java and Spark's jars, and starts and stops the JVM.

It is started without spark-submit, whose shell script and launcher JVM take a second. The JVM runs PySpark's gateway
and exits when its standard input closes, so it ends with this process even if this process is killed. It runs in its
own session, so Ctrl-C in the terminal does not reach it. Its output is written to a log file. Its working folder and
its temporary files are in `scratch`, which is removed afterwards.

Java is searched in `JAVA_HOME`, in `PATH` and, on macOS, in the system's registry. Its version is read from the
`release` file of the JDK or JRE, because running `java -version` starts a JVM. Spark's jars are located without
importing PySpark, which takes half a second.

@ref engine#lock
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware import faults
from hypaware.errors import ConfigError, NotReady, Retryable

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway


OLDEST_JAVA = 17
# Java 23 removed Subject.getSubject, which Hadoop in Spark 4.1 calls for every file system.
NEWEST_JAVA = 22
MAIN = "org.apache.spark.api.python.PythonGatewayServer"
_OPEN_PACKAGES = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
# The options of Spark's launcher (org.apache.spark.launcher.JavaModuleOptions; a test compares them), without the
# incubating vector module, which only MLlib uses.
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN_PACKAGES),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
)
# Measured (docs/performance.md): the serial collector starts fastest and uses the least memory. C1 alone halves the
# work of the first minutes, and scans, which are bound by zstd and Parquet, are hardly faster with C2.
_RUNTIME_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xss4m",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Dfile.encoding=UTF-8",
    "-Duser.timezone=UTC",
    "-Duser.language=en",
    "-Duser.country=US",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
# MLlib registers functions in every session with Scala reflection, which takes half a second.
_EXCLUDED_JAR = "spark-mllib_"
# Folders with the configuration of a cluster, and who its users are.
CONFIG_FOLDERS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
CLUSTER_VARIABLES = (*CONFIG_FOLDERS, "HADOOP_USER_NAME")
_POLL_SECONDS = 0.005
_START_SECONDS = 120.0
EXIT_SECONDS = 20.0
_LOG_LIMIT = 8 * 1024 * 1024


@dataclass(frozen=True)
class Java:
    executable: Path
    version: str
    build: str
    """Vendor and exact build. A class archive is valid only for the build that wrote it."""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first usable Java. The error names the unusable ones and the install command."""
    unusable: list[str] = []
    for executable in _candidates(environment):
        if (java := _describe_java(executable)) is None:
            continue
        if OLDEST_JAVA <= major_version(java.version) <= NEWEST_JAVA:
            return java
        unusable.append(f"{java.version} at {java.executable}")
    found = f"found only {', '.join(unusable)}" if unusable else "none was found in JAVA_HOME or PATH"
    raise NotReady(
        f"Spark requires Java 17 or 21, but {found}",
        kind="java_unsupported" if unusable else "java_missing",
        repair=java_install_command(),
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home).expanduser() / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(on_path)
    for wanted in ("17", "21") if sys.platform == "darwin" else ():
        asked = subprocess.run(
            ["/usr/libexec/java_home", "-F", "-v", wanted], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and asked.stdout.strip():
            yield Path(asked.stdout.strip()) / "bin" / "java"


def _describe_java(executable: Path) -> Java | None:
    """Return the Java, or None if it does not work (on macOS /usr/bin/java may only offer an installer)."""
    executable = executable.resolve()
    with suppress(OSError):
        release = (executable.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        facts = dict(re.findall(r'^(\w+)="?(.*?)"?$', release, re.MULTILINE))
        if (version := facts.get("JAVA_VERSION")) and executable.is_file():
            runtime = facts.get("JAVA_RUNTIME_VERSION", version)
            return Java(executable, version, f"{facts.get('IMPLEMENTOR', 'unknown')} {runtime}")
    try:
        asked = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    facts = dict(re.findall(r"^\s+(java\.[\w.]+) = (.*)$", asked.stdout + asked.stderr, re.MULTILINE))
    version = facts.get("java.version")
    if asked.returncode != 0 or not version:
        return None
    runtime = facts.get("java.runtime.version", version)
    return Java(executable, version, f"{facts.get('java.vendor', 'unknown')} {runtime}")


def major_version(version: str) -> int:
    """Return 17 for "17.0.15+6", 21 for "21-ea", 8 for "1.8.0_292", and 0 if it is unknown."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if numbers[:1] == [1] and len(numbers) == 2:
        return numbers[1]
    return numbers[0] if numbers else 0


def java_install_command(system: str | None = None, os_release: Mapping[str, str] | None = None) -> str:
    system = system or platform.system()
    if system == "Darwin":
        return "brew install openjdk@17 && export JAVA_HOME=$(brew --prefix openjdk@17)"
    if system == "Linux":
        if os_release is None:
            os_release = {}
            with suppress(OSError):
                os_release = platform.freedesktop_os_release()
        family = {os_release.get("ID", ""), *os_release.get("ID_LIKE", "").split()}
        if family & {"debian", "ubuntu"}:
            # Debian 13 has no Java 17, and Debian 12 has only 17.
            is_new = os_release.get("ID") == "debian" and major_version(os_release.get("VERSION_ID", "")) >= 13
            return f"sudo apt-get install -y openjdk-{21 if is_new else 17}-jre-headless"
        if family & {"fedora", "rhel", "centos"}:
            return "sudo dnf install -y java-21-openjdk-headless"
    return "Install Java 17 or 21 (any vendor) and set JAVA_HOME to it"


@cache
def spark_jars_folder() -> Path:
    """Return the folder of Spark's jars. The user's SPARK_HOME is another Spark and is ignored."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise NotReady("PySpark is not installed", kind="pyspark_missing", repair="pip install hypaware")
    # Installers may link packages from a shared folder; links to the same Spark share one class archive.
    return Path(spec.origin).resolve().parent / "jars"


def build_class_path(own_jars: Sequence[Path]) -> tuple[Path, ...]:
    """Return the engine's jars followed by Spark's, sorted, because a class archive is valid only for the same list."""
    return (
        *own_jars,
        *(jar for jar in sorted(spark_jars_folder().glob("*.jar")) if not jar.name.startswith(_EXCLUDED_JAR)),
    )


def parse_heap_size(memory: str) -> str:
    """Convert the setting `engine.memory` to the form of -Xmx."""
    if not re.fullmatch(r"[1-9]\d*[kmgt]", memory, re.IGNORECASE):
        raise ConfigError(
            f'engine.memory = "{memory}" is not a valid Java heap size; use an integer with k, m or g, such as "1g"',
            repair="hyp config set engine.memory 1g",
        )
    return memory.lower()


class Jvm:
    """A running driver JVM."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Path, log: Path, log_start: int) -> None:
        self._process = process
        self._connection = connection
        self._log = log
        self._log_start = log_start

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def connect(self) -> JavaGateway:
        """Wait until the JVM's gateway listens, and connect to it."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._connection.is_file():
            if not self.alive:
                lines = self._log.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
                reason = " / ".join(line.strip() for line in lines[:3]) or f"no output in {self._log}"
                raise Retryable(
                    f"Spark's JVM failed to start (exit code {self._process.returncode}): {reason}", kind="jvm_failed"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise Retryable(f"Spark's JVM did not start; see {self._log}", kind="jvm_failed")
            time.sleep(_POLL_SECONDS)
        # The file that the gateway wrote: its port, and its secret with the length before it.
        body = self._connection.read_bytes()
        self._connection.unlink()
        port, length = struct.unpack(">ii", body[:8])
        names = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": body[8 : 8 + length].decode()}

        from pyspark.java_gateway import launch_gateway

        os.environ.update(names)
        try:
            return launch_gateway()
        finally:
            for name in names:
                del os.environ[name]

    def close(self, timeout: float = EXIT_SECONDS) -> None:
        """Ask the JVM to exit and wait. Kill it if it does not exit in time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            faults.forget_child(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        faults.forget_child(self._process.pid)


def start_jvm(
    java: Java,
    class_path: Sequence[Path],
    memory: str,
    scratch: Path,
    log_file: Path,
    archive_options: Sequence[str] = (),
    keep_open: tuple[int, ...] = (),
    *,
    for_cluster: bool = False,
) -> Jvm:
    """Start the JVM and return immediately, so that PySpark can be imported while the JVM starts.

    The JVM keeps the descriptors of `keep_open` open for its lifetime. For a cluster, it reads the configuration of
    Spark and Hadoop in the folders that the environment names.
    """
    environment = _environment(for_cluster=for_cluster)
    configured = [environment[name] for name in CONFIG_FOLDERS if environment.get(name)]
    logging = resources.files("hypaware.engine").joinpath("log4j2.properties")
    command = [
        str(java.executable),
        f"-Xmx{parse_heap_size(memory)}",
        *_RUNTIME_OPTIONS,
        *MODULE_OPTIONS,
        *archive_options,
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={Path(str(logging)).as_uri()}",
        "-cp",
        os.pathsep.join([*map(str, class_path), *configured]),
        MAIN,
    ]
    connection = scratch / "gateway"
    if log_file.exists() and log_file.stat().st_size > _LOG_LIMIT:
        log_file.rename(log_file.with_name(f"{log_file.name}.1"))
    fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "ab") as log:
        log_start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=scratch,
            env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection)},
            start_new_session=True,
            umask=0o077,
            pass_fds=keep_open,
        )
    faults.also_kill(process.pid)
    return Jvm(process, connection, log_file, log_start)


def _environment(*, for_cluster: bool) -> dict[str, str]:
    """Return the user's environment without the settings of another Spark, and with fixed host names and user."""
    foreign = ("SPARK_", "PYSPARK_", "HADOOP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    if for_cluster:
        kept |= {name: os.environ[name] for name in CLUSTER_VARIABLES if name in os.environ}
    kept |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    kept |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
    kept.setdefault("SPARK_USER", kept.get("HADOOP_USER_NAME") or str(os.getuid()))
    if "PYTHONPATH" in kept:
        # The JVM and the Python workers run in another folder.
        kept["PYTHONPATH"] = os.pathsep.join(
            str(Path(part).absolute()) for part in kept["PYTHONPATH"].split(os.pathsep) if part
        )
    locale = kept.get("LC_ALL") or kept.get("LC_CTYPE") or kept.get("LANG") or ""
    if sys.platform != "darwin" and "utf" not in locale.lower():
        # Java derives the encoding of file names from the locale.
        kept["LC_ALL"] = "C.UTF-8"
    return kept
