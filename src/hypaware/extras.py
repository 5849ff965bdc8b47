"""The optional parts of the package: which modules each extra adds, and the error if one is needed and missing.

The names are those of `[project.optional-dependencies]` in pyproject.toml.
"""

from __future__ import annotations

import importlib.util

from hypaware.errors import NotReady

MODULES = {
    "mcp": ("mcp",),
    "otlp": ("opentelemetry.proto.collector", "google.protobuf"),
    "s3": ("obstore",),
    "server": ("jwt", "prometheus_client"),
    "team": ("psycopg", "obstore"),
    "telemetry": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
_PURPOSE = {
    "mcp": "serving agents over MCP",
    "otlp": "recording telemetry over OTLP",
    "s3": "delivering to S3, Google Cloud Storage or Azure",
    "server": "the server",
    "team": "a shared lake",
    "telemetry": "telemetry",
}


def is_installed(extra: str) -> bool:
    """Return whether the modules of the extra can be found. They are not imported."""
    return all(_is_found(module) for module in MODULES[extra])


def require(extra: str) -> None:
    """Raise NotReady, with the command that installs it, if the extra is not installed."""
    if not is_installed(extra):
        raise NotReady(
            f"{_PURPOSE[extra]} needs packages that are not installed",
            kind=f"{extra}_not_installed",
            repair=install_command(extra),
        )


def install_command(extra: str) -> str:
    return f"pip install 'hypaware[{extra}]'"


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
