"""Opening the destination's catalog and table: made where it is absent, and given what it lacks where it is there.

On Spark's thread. The catalog is opened beside Spark's own, not among them: queries cannot name it, and its
credentials are in no setting of the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hypaware.export.sink import Denied
from hypaware.export.sinks.iceberg import shape, troubles
from hypaware.export.sinks.iceberg.catalog import CatalogSettings
from hypaware.export.sinks.iceberg.shape import DATASET
from hypaware.export.sinks.iceberg.table import IcebergTable
from hypaware.model.datasets import Dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In SQLite's words and in PostgreSQL's.
_THERE_ALREADY = re.compile(r"duplicate column name|already exists")


def open_table(spark: SparkSession, settings: CatalogSettings, name: str, dataset: Dataset) -> IcebergTable:
    """Makes the table where it is absent, and what it lacks of the dataset's columns where it is there."""
    jvm: Any = spark._jvm
    iceberg = jvm.org.apache.iceberg
    catalog = _open_catalog(spark, settings)
    try:
        identifier = iceberg.catalog.TableIdentifier.parse(name)
        table = _load(catalog, identifier) or _create(jvm, catalog, identifier, dataset)
        _fit(jvm, table, dataset)
        return IcebergTable(spark, catalog, table, dataset)
    except BaseException:
        if jvm.java.lang.Class.forName("java.io.Closeable").isInstance(catalog):
            catalog.close()
        raise


def _open_catalog(spark: SparkSession, settings: CatalogSettings) -> Any:
    """A JDBC catalog makes its own tables, and Iceberg does not expect another engine to do so in the same moment."""
    try:
        return _build(spark, settings)
    except Exception as error:
        if not any(_THERE_ALREADY.search(cause.message) for cause in troubles.causes(error)):
            raise
        return _build(spark, settings)


def _build(spark: SparkSession, settings: CatalogSettings) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        settings.name, _java_map(jvm, settings.properties), spark.sparkContext._jsc.hadoopConfiguration()
    )


def _load(catalog: Any, identifier: Any) -> Any:
    try:
        return catalog.loadTable(identifier)
    except Exception as error:
        if troubles.is_a(error, "NoSuchTableException", "NoSuchNamespaceException"):
            return None
        raise


def _create(jvm: Any, catalog: Any, identifier: Any, dataset: Dataset) -> Any:
    """Another engine may do the same at the same time; either's table will do."""
    parsers = jvm.org.apache.iceberg
    namespace = identifier.namespace()
    if not catalog.namespaceExists(namespace):
        try:
            catalog.createNamespace(namespace, _java_map(jvm, {}))
        except Exception:
            if not catalog.namespaceExists(namespace):
                raise
    schema = parsers.SchemaParser.fromJson(shape.new_schema(dataset))
    spec = parsers.PartitionSpecParser.fromJson(schema, shape.new_partitions(dataset))
    properties = {**shape.NEW_TABLE_PROPERTIES, DATASET: dataset.name}
    try:
        return catalog.createTable(identifier, schema, spec, _java_map(jvm, properties))
    except Exception as error:
        if troubles.is_a(error, "AlreadyExistsException"):
            return catalog.loadTable(identifier)
        raise


def _fit(jvm: Any, table: Any, dataset: Dataset) -> None:
    """Whatever the table lacks to take the dataset's rows; nothing where it has it all."""
    holds = table.properties().get(DATASET)
    if holds not in (None, dataset.name):
        raise Denied(
            f"the table holds the rows of {holds}, not of {dataset.name}: name another table",
            kind="wrong_table",
            repair="hyp config show",
        )
    changes = shape.changes_for(dataset, str(jvm.org.apache.iceberg.SchemaParser.toJson(table.schema())))
    if changes.added or changes.relaxed:
        change = table.updateSchema()
        for column in changes.added:
            type_ = jvm.org.apache.iceberg.types.Types.fromPrimitiveString(shape.type_of(column))
            change = change.addColumn(column.name, type_, column.about)
        for name in changes.relaxed:
            change = change.makeColumnOptional(name)
        change.commit()
    wanted = {**shape.PROPERTIES, DATASET: dataset.name}
    missing = {key: value for key, value in wanted.items() if table.properties().get(key) is None}
    if missing:
        update = table.updateProperties()
        for key, value in missing.items():
            update = update.set(key, value)
        update.commit()


def _java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    made = jvm.java.util.HashMap()
    for key, value in values.items():
        made.put(key, value)
    return made
