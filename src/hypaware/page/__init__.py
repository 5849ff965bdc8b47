"""The page: what the reading commands show, in the browser."""
