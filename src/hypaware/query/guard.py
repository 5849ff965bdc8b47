"""Lets one read-only SELECT over the datasets through, and nothing else.

Decided on plans, never on the text: first on what Spark's parser made of it, where every kind of node must be known
to be harmless and every relation must be a dataset or a CTE; then once more on what the analyzer resolved, where
nothing but the datasets' views and values of the query itself may be left. What was checked is what runs.

Analysis itself may already call functions (the arguments of `range`, the values of PIVOT), so that the first check
has to be complete: function names, table functions, every subquery, CTE, window and hint.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypaware.errors import HypError, QueryRefused
from hypaware.lake.metadata import NAMESPACE
from hypaware.nearest import nearest
from hypaware.query import allowed, plan_tree, spark_errors
from hypaware.query.plan_tree import Node, Tree
from hypaware.query.spark_classes import SparkClasses
from hypaware.query.views import Relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORDS = {
    "CompoundBody": "a script (BEGIN … END)",
    "ExplainCommand": "EXPLAIN",
    "ExpressionWithUnresolvedIdentifier": "IDENTIFIER(…)",
    "InsertIntoDir": "INSERT OVERWRITE DIRECTORY",
    "InsertIntoStatement": "INSERT",
    "PlanWithUnresolvedIdentifier": "IDENTIFIER(…)",
    "RelationTimeTravel": "time travel (VERSION AS OF, TIMESTAMP AS OF)",
    "ScriptTransformation": "TRANSFORM … USING, which runs a program,",
    "UnresolvedEventTimeWatermark": "WATERMARK",
    "UnresolvedExecuteImmediate": "EXECUTE IMMEDIATE",
}
_LOOKS_AROUND = re.compile("Show|Describe|Explain|List")
_RULE = "`hyp query sql` runs one SELECT over the datasets and changes nothing"


@dataclass(frozen=True)
class Statement:
    plan: Any
    """The parsed plan, in the JVM."""
    relations: frozenset[Relation]
    limit: int | None
    """The LIMIT that ends the statement, if it is a plain number."""
    ordered: bool
    """Whether which rows come first depends on all of them (ORDER BY, OFFSET)."""

    @property
    def datasets(self) -> frozenset[str]:
        return frozenset(relation.dataset for relation in self.relations)


def parse(session: SparkSession, sql: str, known: Collection[str]) -> Statement:
    """The statement, if its parsed plan is a read-only SELECT over known datasets; else QueryRefused."""
    if not sql.strip():
        raise QueryRefused(f"there is no SQL here: {_RULE}")
    if not sql.isascii():
        _check_unicode(sql)
    plan = _parse(session, sql)
    tree = plan_tree.read(plan)
    ctes: set[str] = set()
    named: list[Node] = []
    for node in _parsed_nodes(plan, tree):
        _check_parsed(node)
        if node["class"].endswith(".UnresolvedWith"):
            ctes.update(_cte_names(node))
        elif node["class"].endswith(".UnresolvedRelation"):
            named.append(node)
    relations = {relation for node in named if (relation := _relation(node, ctes, known))}
    ordered = any(node["class"].endswith((".Sort", ".Offset")) for node in tree)
    return Statement(plan, frozenset(relations), _limit(tree[0]), ordered)


def check_analyzed(analyzed: Any, java: SparkClasses, known: Collection[str]) -> None:
    """The second look, at what names and functions have come to mean. Below our own views all is ours: that part,
    which is by far the largest, is not even fetched."""
    waiting = [analyzed]
    while waiting:
        plan = waiting.pop()
        package, _, name = plan.getClass().getName().rpartition(".")
        if name == "View":
            _check_view(plan.desc().identifier().table(), known)
            continue
        _check_analyzed(package, name)
        expressions = plan.expressions()
        if expressions.nonEmpty():
            _check_expressions(plan_tree.read(java.as_one(expressions)), known)
        waiting.extend(_each(plan.children()))


def _check_expressions(tree: Tree, known: Collection[str]) -> None:
    """With the plans of subqueries in them."""
    for node in plan_tree.nodes(tree, closed=_is_view):
        if _is_view(node):
            _check_view(node["desc"]["identifier"]["table"], known)
        else:
            _check_analyzed(*plan_tree.class_of(node))


def _is_view(node: Node) -> bool:
    return bool(node["class"] == f"{allowed.LOGICAL}.View")


def _check_view(name: str, known: Collection[str]) -> None:
    if name.lower() not in known:
        raise QueryRefused(f"{name} is not a dataset: {_RULE}")


def _check_analyzed(package: str, name: str) -> None:
    if package.startswith(allowed.EXPRESSIONS):
        if allowed.REFUSED_EXPRESSIONS.fullmatch(name):
            raise QueryRefused(f"{name} is refused: {_RULE}")
    elif name not in allowed.ANALYZED_NODES.get(package, ()):
        raise QueryRefused(f"{_words(name)} is refused: {_RULE}")


def _check_unicode(sql: str) -> None:
    """Bytes of the command line that are not UTF-8 arrive as lone surrogates, which cannot be sent to the JVM."""
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise HypError("the SQL is not valid UTF-8", kind="query_invalid") from None


def _parse(session: SparkSession, sql: str) -> Any:
    from pyspark.errors import ParseException

    parser = session._jsparkSession.sessionState().sqlParser()
    try:
        with spark_errors.translated():
            return parser.parsePlan(sql)
    except HypError:
        # Spark calls a second statement a syntax error; only its script parser knows better.
        try:
            script = parser.parsePlan(f"BEGIN\n{sql.rstrip().rstrip(';')}\n;\nEND")
        except ParseException:
            script = None
        if script is not None and script.children().size() > 1:
            raise QueryRefused(f"there are several statements: {_RULE}") from None
        raise


def _parsed_nodes(plan: Any, tree: Tree) -> Iterator[Node]:
    named_windows = False
    for node in plan_tree.nodes(tree):
        named_windows = named_windows or allowed.WINDOW_DEFINITIONS in node
        yield node
    if named_windows:
        for definition in _window_definitions(plan):
            for node in plan_tree.nodes(plan_tree.read(definition)):
                if allowed.WINDOW_DEFINITIONS in node:
                    raise QueryRefused(f"a WINDOW clause within a WINDOW clause is refused: {_RULE}")
                yield node


def _window_definitions(plan: Any) -> Iterator[Any]:
    """What stands in the WINDOW clauses: a map, which the JSON hides. One by one, as hardly any query has them."""
    waiting = [plan]
    while waiting:
        plan = waiting.pop()
        if plan.nodeName() == "WithWindowDefinition":
            yield from _each(plan.windowDefinitions().values())
        for below in (plan.children(), plan.innerChildren(), plan.subqueries()):
            waiting.extend(_each(below))


def _each(scala_items: Any) -> Iterator[Any]:
    items = scala_items.iterator()
    while items.hasNext():
        yield items.next()


def _check_parsed(node: Node) -> None:
    package, name = plan_tree.class_of(node)
    if package.startswith(allowed.EXPRESSIONS):
        return
    if name not in allowed.PARSED_NODES.get(package, ()):
        repair = "hyp query schema" if _LOOKS_AROUND.match(name) else None
        raise QueryRefused(f"{_words(name)} is refused: {_RULE}", repair=repair)
    if hidden := plan_tree.hidden_fields(node) - allowed.HARMLESSLY_HIDDEN - {allowed.WINDOW_DEFINITIONS}:
        raise QueryRefused(f"this {_words(name)} cannot be checked ({', '.join(sorted(hidden))}): {_RULE}")
    if name == "UnresolvedFunction":
        _check_function(_parts(node["nameParts"]))
    elif name == "UnresolvedGenerator":
        _check_function([part for key in ("catalog", "database", "funcName") if (part := node["name"].get(key))])
    elif name == "UnresolvedTableValuedFunction":
        _check_table_function(_parts(node["name"]))


def _check_function(parts: list[str]) -> None:
    if len(parts) > 1:
        raise QueryRefused(f"function {'.'.join(parts)} is refused: only Spark's own functions, by their plain names")
    if parts[0].lower() in allowed.REFUSED_FUNCTIONS:
        raise QueryRefused(f"function {parts[0]} is refused: it can run code or read files outside the datasets")


def _check_table_function(parts: list[str]) -> None:
    name = ".".join(parts)
    if name.lower() not in allowed.TABLE_FUNCTIONS:
        raise QueryRefused(
            f"table function {name} is refused: FROM takes datasets and {', '.join(sorted(allowed.TABLE_FUNCTIONS))}"
        )


def _relation(node: Node, ctes: Collection[str], known: Collection[str]) -> Relation | None:
    """The dataset that is named here, None if it is a CTE."""
    parts = _parts(node["multipartIdentifier"])
    shown, last = ".".join(parts), parts[-1].lower()
    if node["isStreaming"]:
        raise QueryRefused(f"STREAM {shown} is refused: {_RULE}")
    if len(parts) == 1 and last in ctes:
        return None
    if len(parts) == 1 and last in known:
        return Relation(last)
    if len(parts) == 2 and parts[0].lower() == NAMESPACE and last in known:
        return Relation(last, qualified=True)
    if parts[0].lower() in allowed.FILE_FORMATS:
        raise QueryRefused(f"{shown} is refused: files cannot be queried, only datasets", repair="hyp query schema")
    if last in known:
        raise QueryRefused(f"{shown} is refused: call the dataset {last} or {NAMESPACE}.{last}")
    if inner := next((part for part in parts if part.lower() in known), None):
        raise QueryRefused(f"{shown} is refused: of {inner} only its rows can be queried")
    near = nearest(last, sorted(known), and_all=True)
    raise QueryRefused(f"there is no dataset {shown}.{near}", repair="hyp query schema")


def _cte_names(node: Node) -> Iterator[str]:
    """A name with ", " in it could pass for one of several parts (see `_parts`), so it does not count as a CTE."""
    for cte in node["cteRelations"]:
        if ", " not in cte["_1"]:
            yield cte["_1"].lower()


def _parts(written: str) -> list[str]:
    """`[a, b]`, as the JSON writes a name of several parts."""
    return written[1:-1].split(", ")


def _limit(root: Node) -> int | None:
    if not root["class"].endswith(".GlobalLimit"):
        return None
    match root["limitExpr"]:
        case [{"dataType": "integer", "value": str() as value}]:
            return int(value)
    return None


def _words(name: str) -> str:
    """`CreateTableAsSelect` as the user wrote it, more or less."""
    if name in _WORDS:
        return _WORDS[name]
    words = re.findall("[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name.removesuffix("$"))
    return " ".join(word.upper() for word in words if word not in ("Command", "Statement", "Unresolved")) or name
