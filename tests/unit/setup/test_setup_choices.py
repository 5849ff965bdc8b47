"""The options of `hyp setup`, and invalid combinations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.errors import UsageError
from hypaware.setup.plan import ExportChoice, parse_export

Hyp = Callable[..., tuple[int, str, str]]


def test_export_options_are_parsed_with_their_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert parse_export(None, None, None) is None
    assert parse_export("keep-local", None, None) == ExportChoice("keep-local")
    assert parse_export("local-parquet", None, None) == ExportChoice("local-parquet")
    assert parse_export("local-parquet", "rows", None) == ExportChoice("local-parquet", str(tmp_path / "rows"))
    assert parse_export("server", "https://hyp.example/", "~/token") == ExportChoice(
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
def test_options_that_do_not_fit_together_are_rejected(kind: str | None, place: str | None, token: str | None) -> None:
    with pytest.raises(UsageError):
        parse_export(kind, place, token)


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
def test_wrong_usage_exits_2_and_creates_nothing(hyp: Hyp, user: Path, tmp_path: Path, args: tuple[str, ...]) -> None:
    code, out, err = hyp("setup", *args)
    assert (code, out) == (2, "")
    assert "error:" in err
    assert not (tmp_path / "home").exists()


def test_without_a_terminal_and_options_setup_exits_2_and_suggests_yes(hyp: Hyp, user: Path, tmp_path: Path) -> None:
    for name in ("setup", "init"):
        code, out, err = hyp(name)
        assert (code, out) == (2, "")
        assert "try: hyp setup --yes" in err
    code, out, _ = hyp("setup", "--json")
    assert (code, json.loads(out)["error"]["repair"]) == (2, ["hyp setup --yes"])
    assert not (tmp_path / "home").exists()


def test_source_is_another_name_of_the_option_client(hyp: Hyp, user: Path) -> None:
    """The JavaScript original calls it `--source`."""
    code, out, _ = hyp("init", "--source", "codex", "--dry-run", "--json")
    assert (code, json.loads(out)["clients"]) == (0, ["codex"])
