"""The version of a build follows from the commit, and is the same wherever it is read."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import click
import pytest

import hypaware
from hypaware import extras
from hypaware.cli import entry
from hypaware.cli.main import hyp as root
from hypaware.gateway.handover import SERVER_PORT
from scripts import hatch_build
from tests.support.source_copy import ROOT, commit_all, git


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository that announces 1.2.3, with one commit and no tag."""
    source = tmp_path / "clone/src/hypaware/__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text('__version__ = "1.2.3.dev0"\n')
    git(tmp_path / "clone", "init", "--quiet")
    commit_all(tmp_path / "clone")
    return tmp_path / "clone"


def test_a_tagged_commit_has_the_version_of_its_tag(clone: Path) -> None:
    git(clone, "tag", "v1.2.3")
    git(clone, "tag", "nightly")
    assert hatch_build.version(clone) == "1.2.3"


def test_a_commit_without_a_tag_has_the_next_version_its_time_and_its_hash(clone: Path, tmp_path: Path) -> None:
    sha = git(clone, "rev-parse", "HEAD")
    found = hatch_build.version(clone)
    before, _, after = found.partition("+")
    assert before.startswith("1.2.3.dev20")
    assert len(before.removeprefix("1.2.3.dev")) == len("20260102030405")
    assert after == f"g{sha[:9]}"
    git(tmp_path, "clone", "--quiet", "--depth=1", "--no-tags", f"file://{clone}", "shallow")
    assert hatch_build.version(tmp_path / "shallow") == found


def test_a_commit_after_a_release_announces_the_next_one(clone: Path) -> None:
    git(clone, "tag", "v1.2.3")
    (clone / "src/hypaware/__init__.py").write_text('__version__ = "1.3.0.dev0"\n')
    commit_all(clone)
    assert hatch_build.version(clone).startswith("1.3.0.dev2")


def test_a_tag_that_contradicts_the_program_is_refused(clone: Path) -> None:
    git(clone, "tag", "v1.3.0")
    with pytest.raises(ValueError, match=r"has the tag v1\.3\.0, but .* says 1\.2\.3\.dev0"):
        hatch_build.version(clone)


def test_an_sdist_has_the_version_that_it_was_built_with(clone: Path) -> None:
    (clone / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: hypaware\nVersion: 1.2.3\n\nVersion: 9\n")
    assert hatch_build.version(clone) == "1.2.3"


def test_files_without_a_repository_have_the_announced_version(clone: Path) -> None:
    (clone / ".git").rename(clone / "git")
    assert hatch_build.version(clone) == "1.2.3.dev0"


def test_files_inside_another_repository_do_not_take_its_version(clone: Path) -> None:
    inner = clone / "vendor/hypaware/src/hypaware/__init__.py"
    inner.parent.mkdir(parents=True)
    inner.write_text('__version__ = "0.9.0.dev0"\n')
    git(clone, "tag", "v1.2.3")
    assert hatch_build.version(clone / "vendor/hypaware") == "0.9.0.dev0"


def test_the_version_is_the_same_wherever_it_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["--version"]) == 0
    assert capsys.readouterr().out == f"hyp {hypaware.__version__}\n"
    assert hatch_build.version(ROOT).startswith(hypaware.__version__.removesuffix(".dev0"))


def test_the_public_names_are_listed() -> None:
    assert dir(hypaware) == sorted(hypaware.__all__)
    assert {"Lake", "Spool", "__version__", "open_lake"} <= set(dir(hypaware))
    assert all(getattr(hypaware, name) for name in dir(hypaware))


def test_the_container_is_built_from_what_exists() -> None:
    """No container engine is needed: the instructions, the extras and the commands in the file are checked."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "RUN", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in lines} == known
    instructions = dict(lines)
    assert instructions["USER"] == "hyp", "the server does not run as root"
    (wanted,) = re.findall(r"\[([a-z0-9,]+)\]\"", text)
    assert set(wanted.split(",")) <= extras.MODULES.keys()
    command = [*json.loads(instructions["ENTRYPOINT"]), *json.loads(instructions["CMD"])]
    assert command[:3] == ["hyp", "server", "run"]
    assert {"--listen"} == {word for word in command if word.startswith("-")} <= set(server_options())
    assert f"EXPOSE {SERVER_PORT}" in text
    names = set(re.findall(r"HYP_[A-Z]+", text))
    described = (ROOT / "docs/configuration.md").read_text()
    assert names == {"HYP_HOME", "HYP_CACHE"}
    assert all(f"| `{name}` |" in described for name in names)


def server_options() -> list[str]:
    group = root.get_command(click.Context(root), "server")
    assert isinstance(group, click.Group)
    return [option for parameter in group.commands["run"].params for option in parameter.opts]


def test_the_program_knows_every_extra_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["optional-dependencies"]
    assert named.keys() - {"all"} == extras.MODULES.keys()
    assert named["all"] == [f"hypaware[{','.join(sorted(extras.MODULES))}]"]
    assert all(extras.is_installed(name) for name in extras.MODULES), "the tests need all of them"
