"""A Spark session for the jobs here, on this machine or on a cluster.

The default master is `local[*]`. PySpark and pandas come with the extra `spark`; `padres_tx.java`
finds a Java. If one of them is missing, the error is one line, before anything starts.

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

#: Of the one JVM of a local master. Aggregations stream; their hash tables need memory.
DRIVER_MEMORY: Final = "1g"

SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    # An experiment has thousands of small files: one task reads many of them, and listing them
    # needs no job of its own.
    "spark.sql.files.openCostInBytes": str(64 * 1024),
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Timestamps are our own, in nanoseconds; results do not depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
}


#: For tables of some thousand rows, in one JVM: compiling would take longer than computing.
SMALL: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

#: The largest experiment that is small in this sense; beyond it compiled code pays off.
SMALL_BYTES: Final = 64 * 1024 * 1024


class SparkError(Exception):
    """Spark cannot be used; the message is one line that names what is missing."""


@contextmanager
def session(
    master: str | None = None, *, name: str = "padres-tx", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that is stopped when the context ends.

    Raises SparkError if PySpark, Java or the master is missing.
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
        raise SparkError(f"cannot start Spark: {_first_line(error)}") from None
    except Exception as error:  # Of Py4J, with the whole stack trace of the JVM.
        raise SparkError(f"cannot reach Spark at {master or LOCAL}: {_first_line(error)}") from None
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
