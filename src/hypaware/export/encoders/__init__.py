"""File formats of blob sinks, registered by entry points in the group `hypaware.encoders`."""
