"""Load the plugins for Spark's Python workers before they are forked."""

from __future__ import annotations

from hypaware.backfill.tasks import load_registries

load_registries()
