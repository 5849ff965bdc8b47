"""Reprojection: project the lake's raw exchanges again with the current decoders, and add the missing rows."""
