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
    """Every node, the ones in fields included. A node that is `closed` is given, but nothing below it."""
    at = 0
    while at < len(tree):
        node = tree[at]
        yield node
        if closed(node):
            at = _end_of(tree, at)
            continue
        for value in node.values():
            yield from _nodes_in(value, closed)
        at += 1


def hidden_fields(node: Node) -> set[str]:
    """The fields whose value, or a part of it, the JSON does not show."""
    return {name for name, value in node.items() if _hides(value)}


def _nodes_in(value: Any, closed: Callable[[Node], bool]) -> Iterator[Node]:
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and "class" in value[0]:
            yield from nodes(value, closed)
        else:
            for item in value:
                yield from _nodes_in(item, closed)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _nodes_in(item, closed)


def _end_of(tree: Tree, at: int) -> int:
    """Where the subtree that begins here ends."""
    open_ = 1
    while open_:
        open_ += tree[at]["num-children"] - 1
        at += 1
    return at


def _hides(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(_hides(item) for item in value))
