"""Where the installed PySpark keeps Spark itself, found without importing it (that takes half a second)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hypaware.errors import NotReady

# MLlib registers functions in every session by way of Scala reflection: half a second of each start.
_LEFT_OUT = "spark-mllib_"


@cache
def spark_jars() -> Path:
    """The folder of Spark's own jars. A SPARK_HOME of the user is another Spark, and is not ours to use."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise NotReady("PySpark is not installed", kind="pyspark_missing", repair="pip install hypaware")
    return Path(spec.origin).parent / "jars"


def class_path(ours: Sequence[Path]) -> tuple[Path, ...]:
    """Our jars before Spark's, each by its name: a class archive is only valid for the very same list."""
    return (*ours, *(jar for jar in sorted(spark_jars().glob("*.jar")) if not jar.name.startswith(_LEFT_OUT)))


def spark_version() -> str:
    return metadata.version("pyspark")
