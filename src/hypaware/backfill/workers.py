"""What Spark's Python workers need for an import, loaded before they are forked: clients and materializers."""

from __future__ import annotations

from hypaware.backfill import pieces

pieces.load_registries()
