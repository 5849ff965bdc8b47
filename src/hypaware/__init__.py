"""HypAware records AI-agent sessions into an Iceberg lakehouse that the user owns.

import hypaware

with hypaware.Spool("~/.hyp") as spool:
    spool.append("ai_gateway_messages", rows)       # the rows are durable when it returns
lake = hypaware.open_lake("~/.hyp")
lake.query("SELECT count(DISTINCT session_id) FROM ai_gateway_messages")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from hypaware._version import __version__
except ImportError:  # Only built packages have that file; a clone has the version that comes next.
    __version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from hypaware.api import Lake, open_lake
    from hypaware.spool.writer import Spool

__all__ = ["Lake", "Spool", "__version__", "open_lake"]
_MODULES = {"Lake": "hypaware.api", "open_lake": "hypaware.api", "Spool": "hypaware.spool.writer"}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import hypaware` stays fast."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'hypaware' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those that are not imported yet."""
    return sorted(__all__)
