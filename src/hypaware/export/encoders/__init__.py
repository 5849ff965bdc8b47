"""File formats of blob sinks; they register by entry points in the group `hypaware.encoders`."""
