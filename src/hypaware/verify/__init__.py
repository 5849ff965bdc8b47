"""Check the integrity of the recorded data, and repair derived data."""
