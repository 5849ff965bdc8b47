"""Walking the JSON of a plan: nothing that it shows may be missed, what it hides must be noticed."""

from __future__ import annotations

from hypaware.query import plan_tree
from hypaware.query.plan_tree import Node, Tree


def node(name: str, children: int = 0, /, **fields: object) -> Node:
    return {"class": f"p.{name}", "num-children": children, **fields}


def names(tree: Tree) -> list[str]:
    return [plan_tree.class_of(found)[1] for found in plan_tree.nodes(tree)]


def test_children_subqueries_and_what_hangs_in_fields_are_all_found() -> None:
    subquery = [node("Subquery", 1), node("Inner")]
    tree = [
        node("Root", 2, condition=[node("And", 1), node("Exists", plan=subquery)]),
        node("Left", rows=[[[node("Cell")]], []]),
        node("Right", ctes=[{"product-class": "Tuple2", "_1": "a", "_2": [node("Body")]}]),
    ]

    assert names(tree) == ["Root", "And", "Exists", "Subquery", "Inner", "Left", "Cell", "Right", "Body"]


def test_nothing_below_a_closed_node_is_given_but_all_that_follows_it() -> None:
    tree = [
        node("Join", 2),
        node("View", 1, desc=[node("Hidden")]),
        node("Project", 1),
        node("Table"),
        node("Other"),
    ]

    seen = plan_tree.nodes(tree, closed=lambda found: found["class"] == "p.View")
    assert [plan_tree.class_of(found)[1] for found in seen] == ["Join", "View", "Other"]


def test_a_field_that_the_json_does_not_show_is_named() -> None:
    pair = {"product-class": "Tuple2", "_1": "a", "_2": None}
    inner = node("Inner", map=None)

    assert plan_tree.hidden_fields(
        node("A", map=None, rows=[[None]], pairs=[pair], nodes=[inner], shown=[], name="x", flag=False)
    ) == {"map", "rows", "pairs"}


def test_a_plan_may_be_nested_as_deeply_as_it_likes() -> None:
    tree = [node("Innermost")]
    for _ in range(5000):
        tree = [node("Outer", plan=tree)]

    assert len(names(tree)) == 5001
