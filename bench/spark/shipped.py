"""The modules that executors need, shipped with the job: the audit, and what it imports.

Executors need not have this package installed. The job's own functions are pickled by value; the
modules go as source in an archive, which Spark distributes to every executor, with the one library
that they import. An executor that has the package installed uses the shipped modules as well.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import sortedcontainers
from pyspark import cloudpickle

import overlay
import padres_tx

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "padres-tx-shipped.zip"

#: Of the overlay, what filters and the audit need; nothing here imports other packages than the
#: library below.
OVERLAY: Final = (
    "__init__",
    "matching/__init__",
    "tables/__init__",
    "errors",
    "filters",
    "matching/index",
    "matching/compiled_tests",
    "matching/cells",
    "matching/tree",
    "matching/stored_tree",
    "tables/last_word",
    "notation",
    "stored",
)

#: Of padres_tx the audit, without the promises: they are known where the job is planned.
AUDIT: Final = (
    "__init__",
    "audit/__init__",
    "audit/dependency_graph",
    "audit/expected_tables",
    "audit/recent_accesses",
    "audit/record_fields",
    "audit/replay",
    "audit/replayed_tables",
)

#: Executors may fetch an archive as long as its session lives.
_kept: dict[str, tempfile.TemporaryDirectory[str]] = {}


def by_value(*modules: str) -> None:
    """Pickle the functions of these modules by value, for executors that do not have them.

    A module whose functions run on executors calls this with its own name, at its end.
    """
    pickler: Any = cloudpickle  # PySpark ships it without types.
    for module in modules:
        pickler.register_pickle_by_value(sys.modules[module])


def ship(spark: SparkSession) -> None:
    """Send the archive to the executors of a session, once."""
    context = spark.sparkContext
    session = str(context.applicationId)
    if session not in _kept:
        _kept[session] = tempfile.TemporaryDirectory(prefix="padres-tx-")
        context.addPyFile(str(archive(Path(_kept[session].name))))


def archive(directory: Path) -> Path:
    """Write the archive; returns its path."""
    path = directory / NAME
    with zipfile.ZipFile(path, "w") as file:
        for package, names in ((overlay, OVERLAY), (padres_tx, AUDIT)):
            for name in names:
                file.write(_home(package) / f"{name}.py", f"{package.__name__}/{name}.py")
        for source in sorted(_home(sortedcontainers).glob("*.py")):
            file.write(source, f"sortedcontainers/{source.name}")
    return path


def _home(package: ModuleType) -> Path:
    assert package.__file__ is not None
    return Path(package.__file__).parent
