"""The settings of `[engine.spark]`: passed to Spark as they are, except for those that HypAware itself depends on.

A setting of Spark is text, a number, true or false, under its full name in quotes: "spark.executor.cores" = 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hypaware.config.values import ValueType

# A name, or the beginning of names if it ends with a dot, and why it cannot be set.
REFUSED: Mapping[str, str] = {
    "spark.master": "set engine.master",
    "spark.driver.memory": "set engine.memory",
    "spark.authenticate": "set engine.secret_file",
    "spark.authenticate.": "set engine.secret_file",
    "spark.sql.catalog.hyp": "the lake's own catalog is set with [lake]",
    "spark.sql.catalog.hyp.": "the lake's own catalog is set with [lake]",
    "spark.sql.extensions": "the lake needs Iceberg's",
    "spark.sql.session.timeZone": "the days of rows are in UTC",
    "spark.sql.catalogImplementation": "queries are confined to the lake",
    "spark.sql.globalTempDatabase": "queries are confined to the lake",
    "spark.sql.runSQLOnFiles": "queries are confined to the lake",
    "spark.sql.warehouse.dir": "queries are confined to the lake",
    "spark.hadoop.fs.permissions.umask-mode": "others could read the files of the lake",
    "spark.ui.enabled": "Spark's pages have no sign-in and show queries; use spark.eventLog.enabled",
    "spark.python.daemon.module": "workers must start with HypAware's",
    "spark.driver.extraClassPath": "it has no effect: the JVM has started when it is read",
    "spark.driver.extraJavaOptions": "it has no effect: the JVM has started when it is read",
    "spark.driver.extraLibraryPath": "it has no effect: the JVM has started when it is read",
    "spark.jars": "the engine's jars are pinned and checked by their hashes",
    "spark.jars.": "the engine's jars are pinned and checked by their hashes",
    "spark.submit.": "HypAware does not use spark-submit",
}
_NAME = re.compile(r"spark\.[A-Za-z0-9_.\-]+")
_SECRET = re.compile(
    r"(?:secret|password|passwd|token|credentials?|access[._\-]?key)(?!\w*(?:file|path|provider))", re.I
)


def read_spark_settings(raw: Any) -> dict[str, str]:
    """Return the settings as text. Raise ValueError, without the value, for one that cannot be set."""
    if not isinstance(raw, Mapping):
        raise ValueError
    found: dict[str, str] = {}
    for name, value in raw.items():
        if isinstance(value, Mapping):
            raise ValueError(f'put the name in quotes: "{name}.…" = …')
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a Spark setting: their names begin with spark.")
        if reason := find_refusal(name):
            raise ValueError(f"{name} cannot be set: {reason}")
        if not isinstance(value, str | int | float):
            raise ValueError(f"{name} must be text, a number, true or false")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def is_secret_setting(name: str) -> bool:
    return bool(_SECRET.search(name))


def find_refusal(name: str) -> str | None:
    """Return why a setting cannot be set; None if it can."""
    if name in REFUSED:
        return REFUSED[name]
    return next((reason for start, reason in REFUSED.items() if start.endswith(".") and name.startswith(start)), None)


SPARK_SETTINGS = ValueType(
    "a table of Spark settings", '{ "spark.executor.cores" = 2 }', read_spark_settings, lambda value: dict(value)
)
