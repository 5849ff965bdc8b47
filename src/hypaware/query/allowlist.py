"""The allow-list of the query guard: the plan nodes and functions of a read-only SELECT.

Plan nodes and table functions are allowed one by one, so that those of a new Spark version are refused until they have
been reviewed. Functions are allowed unless listed here, because there are hundreds; a test pins the reviewed set.
"""

from __future__ import annotations

import re


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CATALYST = "org.apache.spark.sql.catalyst"
LOGICAL, ANALYSIS = f"{_CATALYST}.plans.logical", f"{_CATALYST}.analysis"
EXPRESSIONS = f"{_CATALYST}.expressions"
PARSED_NODES = {
    LOGICAL: _word_set(
        """
        Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit
        LocalRelation Offset OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union
        Unpivot UnresolvedHint UnresolvedWith WithWindowDefinition
        """
    ),
    ANALYSIS: _word_set(
        """
        MultiAlias NamedParameter PosParameter UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue
        UnresolvedFunction UnresolvedGenerator UnresolvedHaving UnresolvedInlineTable UnresolvedOrdinal
        UnresolvedPipeAggregateOrdinal UnresolvedRegex UnresolvedRelation UnresolvedStar
        UnresolvedStarExceptOrReplace UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
        UnresolvedTableValuedFunction
        """
    ),
}
ANALYZED_NODES = {
    LOGICAL: _word_set(
        """
        Aggregate CTERelationDef CTERelationRef Distinct Except Expand Filter Generate GlobalLimit Intersect Join
        LateralJoin LocalLimit LocalRelation Offset OneRowRelation Project Range Repartition RepartitionByExpression
        RebalancePartitions ResolvedHint Sample Sort SubqueryAlias Union UnionLoop UnionLoopRef Window WithCTE
        """
    ),
    ANALYSIS: _word_set("MultiAlias ResolvedInlineTable UnresolvedStar"),
}
# Fields that are null in the JSON of a plan and contain neither plans nor expressions.
SAFE_HIDDEN_FIELDS = _word_set("options hint data metadata")
WINDOW_DEFINITIONS = "windowDefinitions"
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
REFUSED_EXPRESSIONS = re.compile(
    r"CallMethodViaReflection|TryReflect|Python\w*|ScalaUD\w*|VariableReference|XmlToStructs|SchemaOfXml"
    r"|\w*Avro\w*|\w*Protobuf\w*"
)
FILE_FORMATS = _word_set("avro binaryfile csv delta iceberg jdbc json orc parquet text xml")
