"""A Spark session for the jobs here, on this machine or on a cluster.

Without a master it is `local[*]`. PySpark and pandas come with the extra `spark`; a Java is looked
for in `padres_tx.java`. Whoever lacks one of them is told so in one line, before anything starts.

What the jobs compute must not be known here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from padres_tx.java import NoJava, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"

#: Summaries are small and two cores are usual; Spark's 200 would be mostly empty tasks.
SHUFFLE_PARTITIONS: Final = 4

#: Of the one JVM that a local master is. Aggregations stream; this is for their hash tables.
DRIVER_MEMORY: Final = "1g"

SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    # An experiment is thousands of small files: a task takes many of them, and to list them takes
    # no job of its own.
    "spark.sql.files.openCostInBytes": str(64 * 1024),
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Timestamps are ours, in nanoseconds; nothing depends on where a machine stands.
    "spark.sql.session.timeZone": "UTC",
}


#: For tables of some thousand rows, in one JVM: compiling them would take longer than computing.
SMALL: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

#: Records of an experiment up to which it is small; there compiled code begins to pay.
SMALL_BYTES: Final = 64 * 1024 * 1024


class SparkError(Exception):
    """Spark cannot be had; the message is one line that says what is missing."""


@contextmanager
def session(
    master: str | None = None, *, name: str = "padres-tx", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that is stopped at the end.

    Raises SparkError if PySpark, Java or the master is not there.
    """
    spark = start(master, name=name, settings=settings)
    try:
        yield spark
    finally:
        spark.stop()


def start(
    master: str | None = None, *, name: str = "padres-tx", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session; `stop` it. Raises SparkError."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkError(
            f"{error.name or 'pyspark'} is missing: pip install 'padres-tx[spark]'"
        ) from None
    try:
        home = find_java()
    except NoJava as error:
        raise SparkError(str(error)) from None
    os.environ["JAVA_HOME"] = str(home)
    # Workers have to run the same Python, whatever `python3` is on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is None or master.startswith("local"):
        # Without a network there may be no name for this machine; a local master needs none.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master or LOCAL)
    chosen = {"spark.driver.memory": DRIVER_MEMORY, **SETTINGS, **(settings or {})}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise SparkError(f"Spark does not start: {_first_line(error)}") from None
    except Exception as error:  # Py4J's own, which carry the JVM's whole trace.
        raise SparkError(f"no Spark at {master or LOCAL}: {_first_line(error)}") from None
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
