"""Decide from its report whether an import succeeded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypaware.errors import HypError


def trouble(report: Mapping[str, Any], requested: Iterable[str]) -> HypError | None:
    """Return the error of an import in which a provider failed or is missing; None if it succeeded."""
    failed = [each["provider"] for each in report["providers"] if "error" in each]
    missing = sorted(set(requested) - {each["provider"] for each in report["providers"]})
    if missing:
        return HypError(
            f"the engine was started without the plugin of {', '.join(missing)}; stop it and run the import again",
            kind="unknown_provider",
            repair="hyp engine stop",
        )
    return HypError(f"the import failed for {', '.join(failed)}", kind="providers_failed") if failed else None
