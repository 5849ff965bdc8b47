"""Read a Spark plan as plain data, in one round trip to the JVM.

`toJSON` writes a tree as a flat list of nodes in pre-order, each with its `class` and `num-children`. A tree in a field
of a node (an expression, a subquery, the body of a CTE) is such a list within that field. Children are always
complete; of the other fields, maps and a few kinds of sequences are written as null: `hidden_fields` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

Node = dict[str, Any]
Tree = list[Node]


def read(java_tree: Any) -> Tree:
    tree: Tree = orjson.loads(java_tree.toJSON())
    return tree


def class_of(node: Node) -> tuple[str, str]:
    """Return the package and the simple name of the node's class."""
    package, _, name = node["class"].rpartition(".")
    return package, name


def nodes(tree: Tree, closed: Callable[[Node], bool] = lambda node: False) -> Iterator[Node]:
    """Yield every node in pre-order, including those in fields. Skip everything below a `closed` node."""
    stack: list[Any] = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(reversed(list(_without_closed(value, closed))))
        elif isinstance(value, dict):
            if "class" in value:
                yield value
                if closed(value):
                    continue
            stack.extend(reversed(value.values()))


def hidden_fields(node: Node) -> set[str]:
    """Return the fields whose value is at least partly missing from the JSON."""
    return {name for name, value in node.items() if _hides(value)}


def _without_closed(items: list[Any], closed: Callable[[Node], bool]) -> Iterator[Any]:
    """Yield the items of a list. If it is a tree, skip the nodes below closed ones."""
    index = 0
    while index < len(items):
        item = items[index]
        yield item
        if isinstance(item, dict) and "class" in item and closed(item):
            index = _end_of(items, index)
        else:
            index += 1


def _end_of(tree: Tree, start: int) -> int:
    """Return the end index of the subtree that begins at `start`."""
    index, open_nodes = start, 1
    while open_nodes:
        open_nodes += tree[index]["num-children"] - 1
        index += 1
    return index


def _hides(value: Any) -> bool:
    if isinstance(value, dict):
        # Nodes within a field are checked on their own.
        return "class" not in value and any(_hides(item) for item in value.values())
    return value is None or (isinstance(value, list) and any(_hides(item) for item in value))
