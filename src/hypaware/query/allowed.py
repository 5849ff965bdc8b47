"""What a plan of a read-only SELECT may be made of.

Lists of what is allowed wherever Spark's own set is open: a kind of node or table function that a new Spark brings is
refused until somebody has looked at it. Functions are the other way round, because there are hundreds; a test holds
the ones that were looked at.
"""

from __future__ import annotations

import re


def _all_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CATALYST = "org.apache.spark.sql.catalyst"
LOGICAL, ANALYSIS = f"{_CATALYST}.plans.logical", f"{_CATALYST}.analysis"
EXPRESSIONS = f"{_CATALYST}.expressions"

PARSED_NODES = {
    LOGICAL: _all_of(
        """
        Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit
        LocalRelation Offset OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union
        Unpivot UnresolvedHint UnresolvedWith WithWindowDefinition
        """
    ),
    ANALYSIS: _all_of(
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
    LOGICAL: _all_of(
        """
        Aggregate CTERelationDef CTERelationRef Distinct Except Expand Filter Generate GlobalLimit Intersect Join
        LateralJoin LocalLimit LocalRelation Offset OneRowRelation Project Range Repartition RepartitionByExpression
        RebalancePartitions ResolvedHint Sample Sort SubqueryAlias Union UnionLoop UnionLoopRef Window WithCTE
        """
    ),
    ANALYSIS: _all_of("MultiAlias ResolvedInlineTable UnresolvedStar"),
}
# Fields that the JSON of a plan hides, and that hold neither plans nor expressions.
HARMLESSLY_HIDDEN = _all_of("options hint data metadata")
WINDOW_DEFINITIONS = "windowDefinitions"

TABLE_FUNCTIONS = _all_of(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack variant_explode
    variant_explode_outer
    """
)
# They call methods of the JVM by name, or take the path of a file among their options.
REFUSED_FUNCTIONS = _all_of(
    """
    from_avro from_protobuf from_xml java_method reflect schema_of_avro schema_of_xml to_avro to_protobuf try_reflect
    """
)
REFUSED_EXPRESSIONS = re.compile(
    r"CallMethodViaReflection|TryReflect|Python\w*|ScalaUD\w*|VariableReference|XmlToStructs|SchemaOfXml"
    r"|\w*Avro\w*|\w*Protobuf\w*"
)
FILE_FORMATS = _all_of("avro binaryfile csv delta iceberg jdbc json orc parquet text xml")
