"""Purge: delete rows from every place of a home that can hold them, and keep them from coming back."""
