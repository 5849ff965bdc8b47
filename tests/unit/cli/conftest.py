from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.home import Home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home for this test that does not exist yet."""
    root = tmp_path / "home"
    monkeypatch.setenv("HYP_HOME", str(root))
    for name in ("HYP_DEBUG", "HYP_DEV_TELEMETRY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return Home(root)


Ran = tuple[int, str, str]


@pytest.fixture
def hyp(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process; return exit code, stdout and stderr."""

    def run(*args: str) -> Ran:
        from hypaware.cli import entry

        capfd.readouterr()
        code = entry.run(args)
        out, err = capfd.readouterr()
        return code, out, err

    return run
