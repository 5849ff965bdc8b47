"""Locates Spark's jars in the installed PySpark, without importing it, which takes half a second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hypaware.errors import NotReady

# MLlib registers functions in every session with Scala reflection, which takes half a second.
_EXCLUDED = "spark-mllib_"


@cache
def spark_jars() -> Path:
    """Return the folder of Spark's jars. The user's SPARK_HOME is another Spark and is ignored."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise NotReady("PySpark is not installed", kind="pyspark_missing", repair="pip install hypaware")
    return Path(spec.origin).parent / "jars"


def class_path(own_jars: Sequence[Path]) -> tuple[Path, ...]:
    """Return the engine's jars followed by Spark's, sorted, because a class archive is valid only for the same list."""
    return (*own_jars, *(jar for jar in sorted(spark_jars().glob("*.jar")) if not jar.name.startswith(_EXCLUDED)))


def spark_version() -> str:
    return metadata.version("pyspark")
