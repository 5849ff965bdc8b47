"""A conversation for people: as text on a terminal, as Markdown, as one HTML file, and redacted for sharing."""
