"""Live exchanges as rows: `project` makes them, `Seen` knows what is recorded, `match_keys` meets imported ones."""

from hypaware.capture.project.projection import Projection, project
from hypaware.capture.project.seen import Seen
from hypaware.capture.project.turn import Kind
from hypaware.model.matching import match_keys

__all__ = ["Kind", "Projection", "Seen", "match_keys", "project"]
