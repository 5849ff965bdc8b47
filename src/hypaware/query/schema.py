"""The columns of the datasets and their meaning, for `hyp query schema`. Needs neither Spark nor a lake."""

from __future__ import annotations

from typing import Any

from hypaware.lake.metadata import NAMESPACE
from hypaware.model import datasets


def describe(dataset: str | None = None) -> dict[str, Any]:
    """Return `{datasets: [{name, about, columns: [{name, type, nullable, about}]}]}` for one or all datasets.

    As in a query, the name is case-insensitive and may include the namespace.
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
