"""What `hyp query schema` shows: the columns of a dataset and what they mean. Needs no Spark and no lake."""

from __future__ import annotations

from typing import Any

from hypaware.lake.metadata import NAMESPACE
from hypaware.model import datasets


def describe(dataset: str | None = None) -> dict[str, Any]:
    """`{datasets: [{name, about, columns: [{name, type, nullable, about}]}]}`, of all of them or of one.

    It may be called as in a query: with its namespace before it, in letters of either case.
    """
    found = datasets.all() if dataset is None else (datasets.get(dataset.lower().removeprefix(f"{NAMESPACE}.")),)
    return {
        "datasets": [
            {
                "name": each.name,
                "about": each.about,
                "columns": [
                    {
                        "name": column.name,
                        "type": str(column.type),
                        "nullable": not column.required,
                        "about": column.about,
                    }
                    for column in each.columns
                ],
            }
            for each in found
        ]
    }
