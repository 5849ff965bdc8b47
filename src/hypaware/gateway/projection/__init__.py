"""Projection: turning a live exchange into message rows.

One module per dialect reads an exchange as a `Turn`; `conversation` finds the parts that are not recorded yet and gives
them ids; `projector` builds the rows.
"""
