"""What flags mean, and which of them do not go together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.errors import UsageError
from hypaware.setup.choices import Choices, Export, export_of

Hyp = Callable[..., tuple[int, str, str]]


def test_an_export_is_understood_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert export_of(None, None, None) is None
    assert export_of("keep-local", None, None) == Export("keep-local")
    assert export_of("local-parquet", None, None) == Export("local-parquet")
    assert export_of("local-parquet", "rows", None) == Export("local-parquet", str(tmp_path / "rows"))
    assert export_of("server", "https://hyp.example/", "~/token") == Export(
        "server", "https://hyp.example", "/nonexistent/token"
    )


@pytest.mark.parametrize(
    ("kind", "place", "token"),
    [
        (None, "https://hyp.example", None),
        (None, None, "token"),
        ("keep-local", "/folder", None),
        ("keep-local", None, "token"),
        ("local-parquet", "s3://bucket", None),
        ("server", None, None),
        ("server", "hyp.example", None),
        ("server", "https://hyp.example/v1", None),
    ],
)
def test_what_does_not_go_together_is_refused(kind: str | None, place: str | None, token: str | None) -> None:
    with pytest.raises(UsageError):
        export_of(kind, place, token)


def test_without_a_daemon_nothing_is_attached() -> None:
    assert Choices().attaches
    assert not Choices(daemon=False).attaches
    assert not Choices(attach=False).attaches


@pytest.mark.parametrize(
    "args",
    [
        ("--client", "clade"),
        ("--export", "elsewhere"),
        ("--export", "server"),
        ("--export", "server https://a.example", "https://b.example"),
        ("--retention-days", "-1"),
        ("--retention-days", "soon"),
    ],
)
def test_wrong_usage_is_told_and_leaves_nothing(hyp: Hyp, user: Path, tmp_path: Path, args: tuple[str, ...]) -> None:
    code, out, err = hyp("setup", *args)
    assert (code, out) == (2, "")
    assert "error:" in err
    assert not (tmp_path / "home").exists()


def test_without_a_terminal_and_without_a_flag_it_says_what_to_write(hyp: Hyp, user: Path, tmp_path: Path) -> None:
    for name in ("setup", "init"):
        code, out, err = hyp(name)
        assert (code, out) == (2, "")
        assert "try: hyp setup --yes" in err
    code, out, _ = hyp("setup", "--json")
    assert (code, json.loads(out)["error"]["repair"]) == (2, ["hyp setup --yes"])
    assert not (tmp_path / "home").exists()
