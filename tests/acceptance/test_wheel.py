"""The wheel in an empty virtual environment, with nothing of the clone in reach.

The packages that the wheel requires, and no others, are linked from the environment of the tests, so that no network is
needed. `make dist-check` sets HYP_DIST_CHECK: then pip installs them, the engine's jars are downloaded into an empty
cache, and the time and the sizes are printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import cache_dir
from scripts import dist, sbom
from tests.support.claude_files import turns, write
from tests.support.processes import PATIENCE
from tests.support.source_copy import git, make_repository

ONLINE = os.environ.get("HYP_DIST_CHECK") == "1"
COUNT = "SELECT session_id, count(*) AS n FROM ai_gateway_messages GROUP BY ALL"
# What must not be found in the environment: the clone, its tools, and the packages of the extras.
UNREACHABLE = ("tests", "scripts", "demo", "pytest", "duckdb", "pyiceberg", "playwright", "obstore", "jwt", "mcp")


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and a user who has nothing but that."""

    folder: Path
    wheel: Path

    @property
    def environment(self) -> dict[str, str]:
        user = self.folder / "user"
        cache = self.folder / "cache" if ONLINE else cache_dir()
        kept = {name: value for name, value in os.environ.items() if name == "JAVA_HOME" or "proxy" in name.lower()}
        path = f"{self.folder / 'venv/bin'}:{os.environ['PATH']}"
        return {**kept, "HOME": str(user), "PATH": path, "HYP_HOME": str(user / ".hyp"), "HYP_CACHE": str(cache)}

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [str(self.folder / "venv/bin" / command[0]), *command[1:]],
            cwd=self.folder / "user",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def hyp(self, *arguments: str) -> Any:
        return json.loads(self.run("hyp", *arguments, "--json"))

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.folder / "venv/bin/python"), *arguments]
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, *quiet], check=True, cwd=self.folder, timeout=PATIENCE)

    @property
    def site(self) -> Path:
        (found,) = (self.folder / "venv/lib").glob("python*/site-packages")
        return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("source") / "repository")


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "dist"
    dist.build(repository, folder)
    return folder


@pytest.fixture
def installed(built: Path, tmp_path: Path) -> Iterator[Installed]:
    (wheel,) = built.glob("*.whl")
    found = Installed(tmp_path, wheel)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    write(tmp_path / "user/.claude/projects/-p/s.jsonl", turns("s", 3))
    began = time.monotonic()
    if ONLINE:
        # PySpark is published as an archive without anything to compile; everything else must be a wheel.
        found.pip("install", "--no-cache-dir", "--only-binary", ":all:", "--no-binary", "pyspark", str(wheel))
    else:
        link_packages(sbom.closure(dist.read_metadata(wheel)[1], extras=False), tmp_path / "packages")
        (found.site / "packages.pth").write_text(f"{tmp_path / 'packages'}\n")
        found.pip("install", "--no-deps", "--no-index", str(wheel))
    print(f"installed in {time.monotonic() - began:.1f} s")
    yield found
    if (tmp_path / "venv/bin/hyp").exists():
        found.run("hyp", "engine", "stop")


def link_packages(names: set[str], folder: Path) -> None:
    """Link everything that the distributions installed into site-packages."""
    folder.mkdir()
    for name in names:
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            source, link = Path(str(distribution.locate_file(top))), folder / top
            if link.is_symlink() and link.readlink() != source:
                raise AssertionError(f"two places have {top}")
            if not link.is_symlink():
                link.symlink_to(source)


def test_the_same_commit_gives_the_same_bytes(
    repository: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    (tmp_path / "shallow/src/hypaware/left_over.py").write_text("")
    for path in (tmp_path / "shallow").rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    before = os.umask(0o077)
    try:
        dist.build(tmp_path / "shallow", tmp_path / "again")
    finally:
        os.umask(before)
    names = sorted(path.name for path in built.iterdir())
    assert [name.rpartition(".")[2] for name in names] == ["SHA256SUMS", "whl", "json", "gz"]
    for name in names:
        assert (built / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_the_hashes_and_the_bill_of_materials_describe_what_was_built(built: Path) -> None:
    files = [path for path in built.iterdir() if path.name != "SHA256SUMS"]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    assert sorted((built / "SHA256SUMS").read_text().splitlines()) == sorted(sums)
    (wheel,), (listed,) = built.glob("*.whl"), built.glob("*.cdx.json")
    version, requirements = dist.read_metadata(wheel)
    bill = json.loads(listed.read_text())
    assert bill["metadata"]["component"]["version"] == version
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert {name for name, scope in scopes.items() if scope == "required"} >= {"pyspark", "sqlite-jdbc", "aiohttp"}
    assert {name for name, scope in scopes.items() if scope == "optional"} >= {"obstore", "pyjwt", "mcp"}
    assert "pytest" not in scopes
    assert len({each["bom-ref"] for each in bill["components"]}) == len(bill["components"])
    assert all(re.search("[0-9a-f]{64}", json.dumps(each)) for each in bill["components"])
    assert requirements


@pytest.mark.spark
def test_the_wheel_alone_sets_up_imports_queries_shows_the_page_and_is_uninstalled(installed: Installed) -> None:
    began = time.monotonic()
    reachable = f"import importlib.util as u; print([n for n in {UNREACHABLE!r} if u.find_spec(n)])"
    assert installed.run("python", "-c", reachable).strip() == "[]"
    version = installed.run("python", "-c", "import hypaware; print(hypaware.__version__, hypaware.__file__)").split()
    assert version[1].startswith(str(installed.folder / "venv"))
    assert installed.run("hypaware", "--version") == f"hyp {version[0]}\n"
    assert installed.hyp("version")["hypaware"] == version[0] == dist.read_metadata(installed.wheel)[0]

    installed.hyp("setup", "--yes", "--no-daemon")
    rows = json.loads(installed.run("hyp", "query", "sql", COUNT, "--format", "json"))
    print(f"first answered query after {time.monotonic() - began:.1f} s")
    assert rows == [{"session_id": "s", "n": 9}]
    check_page(installed)
    check_extras_are_named(installed)
    installed.hyp("engine", "stop")
    print_sizes(installed)

    installed.pip("uninstall", "--yes", "hypaware")
    assert [path for path in installed.site.iterdir() if path.name.startswith("hypaware")] == []
    assert not [path for path in (installed.folder / "venv/bin").iterdir() if path.name.startswith("hyp")]
    assert (installed.folder / "user/.hyp/lake").is_dir(), "the data is the user's"


def check_page(installed: Installed) -> None:
    hyp = str(installed.folder / "venv/bin/hyp")
    with subprocess.Popen(
        [hyp, "open", "--port", "0", "--no-browser"], env=installed.environment, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            browser = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
            )
            with browser.open(url, timeout=PATIENCE) as answer:
                assert answer.status == 200
                root = answer.url.split("/", 3)[:3]
            with browser.open("/".join([*root, "sessions"]), timeout=PATIENCE) as answer:
                assert 'href="/session' in answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)


def check_extras_are_named(installed: Installed) -> None:
    """A part that is not installed is an error with the command that installs it."""
    for extra, command in {
        "mcp": ("mcp", "install", "claude"),
        "server": ("server", "run"),
        "s3": ("export",),
        "telemetry": ("version",),
    }.items():
        setting = {"HYP_DEV_TELEMETRY": "1"} if extra == "telemetry" else {}
        if extra == "s3":
            installed.run("hyp", "config", "set", "sinks.cloud", '{ kind = "blob", destination = "s3://bucket/x" }')
        done = subprocess.run(
            [str(installed.folder / "venv/bin/hyp"), *command],
            env={**installed.environment, **setting},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert f"pip install 'hypaware[{extra}]'" in done.stdout, done.stdout
        assert "Traceback" not in done.stdout


def print_sizes(installed: Installed) -> None:
    """Print what each package takes on disk, for docs/install.md."""
    if not ONLINE:
        return
    sizes: dict[str, int] = {}
    for each in metadata.distributions(path=[str(installed.site)]):
        files = [Path(str(each.locate_file(file))) for file in each.files or ()]
        sizes[each.name] = sum(file.lstat().st_size for file in files if os.path.lexists(file))
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size / 1e6:8.1f} MB  {name}")
    print(f"{sum(sizes.values()) / 1e6:8.1f} MB  together")
