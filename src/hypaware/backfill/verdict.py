"""Whether an import succeeded, told from its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypaware.errors import HypError


def trouble(report: Mapping[str, Any], asked: Iterable[str]) -> HypError | None:
    """A provider that failed, or that the engine passed over, is never a success."""
    failed = [each["provider"] for each in report["providers"] if "error" in each]
    missing = sorted(set(asked) - {each["provider"] for each in report["providers"]})
    if missing:
        return HypError(
            f"the engine does not know {', '.join(missing)}: it was started without that plugin",
            kind="unknown_provider",
            repair="hyp engine stop",
        )
    return HypError(f"it failed for {', '.join(failed)}", kind="providers_failed") if failed else None
