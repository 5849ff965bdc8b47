"""Spark's plans as plain data, in one round trip to the JVM.

`toJSON` writes a tree as a flat list of nodes in pre-order, each with its `class` and `num-children`. Whatever hangs
in a field of a node (an expression, a subquery, the body of a CTE) is such a list within that field. A node's children
are always there; of its other fields, a map and a few kinds of sequence come out as null: `hidden_fields` names them.
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
    """Package and simple name."""
    package, _, name = node["class"].rpartition(".")
    return package, name


def nodes(tree: Tree, closed: Callable[[Node], bool] = lambda node: False) -> Iterator[Node]:
    """Every node, the ones in fields included, in pre-order. A `closed` one is given, but nothing below it."""
    waiting: list[Any] = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(list(_without_closed(value, closed))))
        elif isinstance(value, dict):
            if "class" in value:
                yield value
                if closed(value):
                    continue
            waiting.extend(reversed(value.values()))


def hidden_fields(node: Node) -> set[str]:
    """The fields whose value, or a part of it, the JSON does not show."""
    return {name for name, value in node.items() if _hides(value)}


def _without_closed(items: list[Any], closed: Callable[[Node], bool]) -> Iterator[Any]:
    """The items of a list; where it is a tree, without what is below its closed nodes."""
    at = 0
    while at < len(items):
        item = items[at]
        yield item
        if isinstance(item, dict) and "class" in item and closed(item):
            at = _end_of(items, at)
        else:
            at += 1


def _end_of(tree: Tree, at: int) -> int:
    """Where the subtree that begins here ends."""
    open_ = 1
    while open_:
        open_ += tree[at]["num-children"] - 1
        at += 1
    return at


def _hides(value: Any) -> bool:
    if isinstance(value, dict):
        # Nodes within a field are looked at themselves.
        return "class" not in value and any(_hides(item) for item in value.values())
    return value is None or (isinstance(value, list) and any(_hides(item) for item in value))
