"""Takeover of a cache written by the JavaScript original: import its rows once, and continue its watermarks."""
