"""The built-in kinds of sinks, registered like those of a plugin."""
