"""Answers SQL over the lake: guard (one read-only SELECT), views (public columns only), results, formats."""
