"""Walking the JSON of a plan: no node is missed, and hidden fields are noticed."""

from __future__ import annotations

from hypaware.query import guard
from hypaware.query.guard import PlanNode, PlanTree


def node(name: str, children: int = 0, /, **fields: object) -> PlanNode:
    return {"class": f"p.{name}", "num-children": children, **fields}


def names(tree: PlanTree) -> list[str]:
    return [guard.class_of(found)[1] for found in guard.iterate_nodes(tree)]


def test_children_subqueries_and_trees_in_fields_are_all_found() -> None:
    subquery = [node("Subquery", 1), node("Inner")]
    tree = [
        node("Root", 2, condition=[node("And", 1), node("Exists", plan=subquery)]),
        node("Left", rows=[[[node("Cell")]], []]),
        node("Right", ctes=[{"product-class": "Tuple2", "_1": "a", "_2": [node("Body")]}]),
    ]

    assert names(tree) == ["Root", "And", "Exists", "Subquery", "Inner", "Left", "Cell", "Right", "Body"]


def test_nodes_below_a_closed_node_are_skipped_but_not_those_after_it() -> None:
    tree = [
        node("Join", 2),
        node("View", 1, desc=[node("Hidden")]),
        node("Project", 1),
        node("Table"),
        node("Other"),
    ]

    seen = guard.iterate_nodes(tree, closed=lambda found: found["class"] == "p.View")
    assert [guard.class_of(found)[1] for found in seen] == ["Join", "View", "Other"]


def test_a_field_that_is_hidden_in_the_json_is_named() -> None:
    pair = {"product-class": "Tuple2", "_1": "a", "_2": None}
    inner = node("Inner", map=None)

    assert guard.hidden_fields(
        node("A", map=None, rows=[[None]], pairs=[pair], nodes=[inner], shown=[], name="x", flag=False)
    ) == {"map", "rows", "pairs"}


def test_a_plan_can_be_nested_to_any_depth() -> None:
    tree = [node("Innermost")]
    for _ in range(5000):
        tree = [node("Outer", plan=tree)]

    assert len(names(tree)) == 5001
