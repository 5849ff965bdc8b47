"""Work done in a process of its own, which may be killed for real in the middle of it."""

from hypaware.testing.lives import live

__all__ = ["live"]
