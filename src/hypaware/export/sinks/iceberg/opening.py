"""Open the destination's catalog and table. Creates a missing table and adds missing columns to an existing one.

Runs on Spark's thread. The catalog is not registered with Spark: queries cannot name it, and no setting of the session
holds its credentials.
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

# Messages of SQLite and of PostgreSQL.
_THERE_ALREADY = re.compile(r"duplicate column name|already exists")


def open_table(spark: SparkSession, settings: CatalogSettings, name: str, dataset: Dataset) -> IcebergTable:
    """Open the table; create it if it is missing, and add the dataset's columns that it lacks.

    The catalog is not registered with Spark: queries cannot name it, and no setting of the session holds its
    credentials.
    """
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
    """Open the catalog. A JDBC catalog creates its own tables and fails if another engine does so at the same time."""
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
    """Create the table. If another engine creates it at the same time, use that one."""
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
    """Add whatever the table lacks to accept the dataset's rows."""
    holds = table.properties().get(DATASET)
    if holds not in (None, dataset.name):
        raise Denied(
            f"the table holds rows of {holds}, not of {dataset.name}: configure another table",
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
    result = jvm.java.util.HashMap()
    for key, value in values.items():
        result.put(key, value)
    return result
