"""Allow one read-only SELECT over the datasets, and nothing else.

The guard checks plans, never the text. First it checks the parsed plan: every node must be on the allow-list, and every
relation must be a dataset or a CTE. Then it checks the analyzed plan, which may contain only views of datasets and
values of the query itself. The checked plan is the one that runs. Analysis may already call functions (the arguments of
`range`, the values of PIVOT), so the first check must be complete: function names, table functions, every subquery,
CTE, window and hint.

A plan is fetched from the JVM in one round trip. `toJSON` writes a tree as a flat list of nodes in pre-order, each with
its `class` and `num-children`. A tree in a field of a node (an expression, a subquery, the body of a CTE) is such a
list within that field. Children are always complete; of the other fields, maps and a few kinds of sequences are written
as null: `hidden_fields` returns them.

Plan nodes and table functions are allowed one by one, so that those of a new Spark version are refused until they have
been reviewed. Functions are allowed unless listed here, because there are hundreds; a test pins the reviewed set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from hypaware.errors import HypError, QueryRefused
from hypaware.iceberg.metadata import NAMESPACE
from hypaware.query import errors
from hypaware.query.views import Relation, SparkClasses
from hypaware.text import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PlanNode = dict[str, Any]
PlanTree = list[PlanNode]


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CATALYST = "org.apache.spark.sql.catalyst"
_LOGICAL, _ANALYSIS = f"{_CATALYST}.plans.logical", f"{_CATALYST}.analysis"
_EXPRESSIONS = f"{_CATALYST}.expressions"
_PARSED_NODES = {
    _LOGICAL: _word_set(
        """
        Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit
        LocalRelation Offset OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union
        Unpivot UnresolvedHint UnresolvedWith WithWindowDefinition
        """
    ),
    _ANALYSIS: _word_set(
        """
        MultiAlias NamedParameter PosParameter UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue
        UnresolvedFunction UnresolvedGenerator UnresolvedHaving UnresolvedInlineTable UnresolvedOrdinal
        UnresolvedPipeAggregateOrdinal UnresolvedRegex UnresolvedRelation UnresolvedStar
        UnresolvedStarExceptOrReplace UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
        UnresolvedTableValuedFunction
        """
    ),
}
_ANALYZED_NODES = {
    _LOGICAL: _word_set(
        """
        Aggregate CTERelationDef CTERelationRef Distinct Except Expand Filter Generate GlobalLimit Intersect Join
        LateralJoin LocalLimit LocalRelation Offset OneRowRelation Project Range Repartition RepartitionByExpression
        RebalancePartitions ResolvedHint Sample Sort SubqueryAlias Union UnionLoop UnionLoopRef Window WithCTE
        """
    ),
    _ANALYSIS: _word_set("MultiAlias ResolvedInlineTable UnresolvedStar"),
}
# Fields that are null in the JSON of a plan and contain neither plans nor expressions.
_SAFE_HIDDEN_FIELDS = _word_set("options hint data metadata")
_WINDOW_DEFINITIONS = "windowDefinitions"
TABLE_FUNCTIONS = _word_set(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack variant_explode
    variant_explode_outer
    """
)
# These call methods of the JVM by name, or accept the path of a file as an option.
REFUSED_FUNCTIONS = _word_set(
    """
    from_avro from_protobuf from_xml java_method reflect schema_of_avro schema_of_xml to_avro to_protobuf try_reflect
    """
)
_REFUSED_EXPRESSIONS = re.compile(
    r"CallMethodViaReflection|TryReflect|Python\w*|ScalaUD\w*|VariableReference|XmlToStructs|SchemaOfXml"
    r"|\w*Avro\w*|\w*Protobuf\w*"
)
_FILE_FORMATS = _word_set("avro binaryfile csv delta iceberg jdbc json orc parquet text xml")
_NODE_NAMES = {
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
_INSPECTION = re.compile("Show|Describe|Explain|List")
_ALLOWED = "`hyp query sql` runs one read-only SELECT over the datasets"


@dataclass(frozen=True)
class Statement:
    plan: Any
    """The parsed plan, in the JVM."""
    relations: frozenset[Relation]
    limit: int | None
    """The final LIMIT of the statement, if it is a literal."""
    ordered: bool
    """Whether the first rows of the result depend on all rows (ORDER BY, OFFSET)."""

    @property
    def datasets(self) -> frozenset[str]:
        return frozenset(relation.dataset for relation in self.relations)


def parse_statement(session: SparkSession, sql: str, known: Collection[str]) -> Statement:
    """Parse the statement. Raise QueryRefused unless it is a read-only SELECT over known datasets."""
    if not sql.strip():
        raise QueryRefused(f"the SQL is empty: {_ALLOWED}")
    try:
        # Lone surrogates come from invalid UTF-8 on the command line and cannot be sent to the JVM.
        sql.encode()
    except UnicodeEncodeError:
        raise HypError("the SQL is not valid UTF-8", kind="query_invalid") from None
    plan = _parse_plan(session, sql)
    tree = read_plan(plan)
    ctes: set[str] = set()
    named: list[PlanNode] = []
    for node in _parsed_nodes(plan, tree):
        _check_parsed_node(node)
        if node["class"].endswith(".UnresolvedWith"):
            # A name with ", " is left out: it could pass for several parts (see `_split_name`).
            ctes.update(cte["_1"].lower() for cte in node["cteRelations"] if ", " not in cte["_1"])
        elif node["class"].endswith(".UnresolvedRelation"):
            named.append(node)
    relations = {relation for node in named if (relation := _resolve_relation(node, ctes, known))}
    ordered = any(node["class"].endswith((".Sort", ".Offset")) for node in tree)
    limit = None
    if tree[0]["class"].endswith(".GlobalLimit"):
        match tree[0]["limitExpr"]:
            case [{"dataType": "integer", "value": str() as value}]:
                limit = int(value)
    return Statement(plan, frozenset(relations), limit, ordered)


def _parse_plan(session: SparkSession, sql: str) -> Any:
    from pyspark.errors import ParseException

    parser = session._jsparkSession.sessionState().sqlParser()
    try:
        with errors.translate_errors():
            return parser.parsePlan(sql)
    except HypError:
        # Spark reports a second statement as a syntax error; only its script parser can tell.
        try:
            script = parser.parsePlan(f"BEGIN\n{sql.rstrip().rstrip(';')}\n;\nEND")
        except ParseException:
            script = None
        if script is not None and script.children().size() > 1:
            raise QueryRefused(f"more than one statement: {_ALLOWED}") from None
        raise


def _parsed_nodes(plan: Any, tree: PlanTree) -> Iterator[PlanNode]:
    named_windows = False
    for node in iterate_nodes(tree):
        named_windows = named_windows or _WINDOW_DEFINITIONS in node
        yield node
    # The JSON of the plan does not show the definitions of WINDOW clauses.
    stack = [plan] if named_windows else []
    while stack:
        plan = stack.pop()
        if plan.nodeName() == "WithWindowDefinition":
            for definition in _iterate(plan.windowDefinitions().values()):
                for node in iterate_nodes(read_plan(definition)):
                    if _WINDOW_DEFINITIONS in node:
                        raise QueryRefused(f"a WINDOW clause within a WINDOW clause is not allowed: {_ALLOWED}")
                    yield node
        for below in (plan.children(), plan.innerChildren(), plan.subqueries()):
            stack.extend(_iterate(below))


def _iterate(scala_items: Any) -> Iterator[Any]:
    items = scala_items.iterator()
    while items.hasNext():
        yield items.next()


def _check_parsed_node(node: PlanNode) -> None:
    package, name = class_of(node)
    if package.startswith(_EXPRESSIONS):
        return
    if name not in _PARSED_NODES.get(package, ()):
        repair = "hyp query schema" if _INSPECTION.match(name) else None
        raise QueryRefused(f"{_readable_name(name)} is not allowed: {_ALLOWED}", repair=repair)
    if hidden := hidden_fields(node) - _SAFE_HIDDEN_FIELDS - {_WINDOW_DEFINITIONS}:
        raise QueryRefused(f"{_readable_name(name)} cannot be checked ({', '.join(sorted(hidden))}): {_ALLOWED}")
    if name == "UnresolvedFunction":
        _check_function(_split_name(node["nameParts"]))
    elif name == "UnresolvedGenerator":
        _check_function([part for key in ("catalog", "database", "funcName") if (part := node["name"].get(key))])
    elif name == "UnresolvedTableValuedFunction":
        function = ".".join(_split_name(node["name"]))
        if function.lower() not in TABLE_FUNCTIONS:
            allowed = ", ".join(sorted(TABLE_FUNCTIONS))
            raise QueryRefused(f"table function {function} is not allowed: FROM accepts datasets and {allowed}")


def _check_function(parts: list[str]) -> None:
    if len(parts) > 1:
        raise QueryRefused(f"function {'.'.join(parts)} is not allowed: use Spark's functions by their plain names")
    if parts[0].lower() in REFUSED_FUNCTIONS:
        raise QueryRefused(f"function {parts[0]} is not allowed: it can run code or read files outside the datasets")


def _resolve_relation(node: PlanNode, ctes: Collection[str], known: Collection[str]) -> Relation | None:
    """Return the dataset that the node names, or None for a CTE."""
    parts = _split_name(node["multipartIdentifier"])
    shown, last = ".".join(parts), parts[-1].lower()
    if node["isStreaming"]:
        raise QueryRefused(f"STREAM {shown} is not allowed: {_ALLOWED}")
    if len(parts) == 1 and last in ctes:
        return None
    if len(parts) == 1 and last in known:
        return Relation(last)
    if len(parts) == 2 and parts[0].lower() == NAMESPACE and last in known:
        return Relation(last, qualified=True)
    if parts[0].lower() in _FILE_FORMATS:
        raise QueryRefused(f"{shown} is not allowed: you can query datasets, not files", repair="hyp query schema")
    if last in known:
        raise QueryRefused(f"{shown} is not allowed: name the dataset {last} or {NAMESPACE}.{last}")
    if inner := next((part for part in parts if part.lower() in known), None):
        raise QueryRefused(f"{shown} is not allowed: you can query only the rows of {inner}")
    near = did_you_mean(last, sorted(known), and_all=True)
    raise QueryRefused(f"unknown dataset {shown}.{near}", repair="hyp query schema")


def _split_name(text: str) -> list[str]:
    """Split a name of several parts, which the JSON writes as `[a, b]`."""
    return text[1:-1].split(", ")


def _readable_name(name: str) -> str:
    """Turn the class name of a node, such as `CreateTableAsSelect`, into SQL words."""
    if name in _NODE_NAMES:
        return _NODE_NAMES[name]
    words = re.findall("[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name.removesuffix("$"))
    return " ".join(word.upper() for word in words if word not in ("Command", "Statement", "Unresolved")) or name


def check_analyzed(analyzed: Any, java: SparkClasses, known: Collection[str]) -> None:
    """Check the analyzed plan, in which names and functions are resolved.

    The plan below our own views is trusted. It is by far the largest part, and is not even fetched from the JVM.
    """
    stack = [analyzed]
    while stack:
        plan = stack.pop()
        package, _, name = plan.getClass().getName().rpartition(".")
        if name == "View":
            _check_view(plan.desc().identifier().table(), known)
            continue
        _check_analyzed_node(package, name)
        expressions = plan.expressions()
        if expressions.nonEmpty():
            # Wrapped in one, which is never evaluated. Includes the plans of subqueries in them.
            for node in iterate_nodes(read_plan(java.coalesce(expressions)), closed=_is_view):
                if _is_view(node):
                    _check_view(node["desc"]["identifier"]["table"], known)
                else:
                    _check_analyzed_node(*class_of(node))
        stack.extend(_iterate(plan.children()))


def _is_view(node: PlanNode) -> bool:
    return bool(node["class"] == f"{_LOGICAL}.View")


def _check_view(name: str, known: Collection[str]) -> None:
    if name.lower() not in known:
        raise QueryRefused(f"{name} is not a dataset: {_ALLOWED}")


def _check_analyzed_node(package: str, name: str) -> None:
    if package.startswith(_EXPRESSIONS):
        if _REFUSED_EXPRESSIONS.fullmatch(name):
            raise QueryRefused(f"{name} is not allowed: {_ALLOWED}")
    elif name not in _ANALYZED_NODES.get(package, ()):
        raise QueryRefused(f"{_readable_name(name)} is not allowed: {_ALLOWED}")


def read_plan(java_tree: Any) -> PlanTree:
    tree: PlanTree = orjson.loads(java_tree.toJSON())
    return tree


def class_of(node: PlanNode) -> tuple[str, str]:
    """Return the package and the simple name of the node's class."""
    package, _, name = node["class"].rpartition(".")
    return package, name


def iterate_nodes(tree: PlanTree, closed: Callable[[PlanNode], bool] = lambda node: False) -> Iterator[PlanNode]:
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


def _without_closed(items: list[Any], closed: Callable[[PlanNode], bool]) -> Iterator[Any]:
    """Yield the items of a list. If it is a tree, skip the nodes below closed ones."""
    open_nodes = 0
    for item in items:
        if open_nodes:
            open_nodes += item["num-children"] - 1
            continue
        yield item
        if isinstance(item, dict) and "class" in item and closed(item):
            open_nodes = item["num-children"]


def hidden_fields(node: PlanNode) -> set[str]:
    """Return the fields whose value is at least partly missing from the JSON."""
    return {name for name, value in node.items() if _has_hidden_value(value)}


def _has_hidden_value(value: Any) -> bool:
    if isinstance(value, dict):
        # Nodes within a field are checked on their own.
        return "class" not in value and any(_has_hidden_value(item) for item in value.values())
    return value is None or (isinstance(value, list) and any(_has_hidden_value(item) for item in value))
