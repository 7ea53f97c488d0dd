"""The results of an experiment, for notebooks, figures and comparisons.

    results = bench.load("DIR")
    results.points                    a pandas DataFrame: one row for each point of a figure
    results.runs, results.checks, ... the other summaries
    results.transactions()            every transaction; as large as the experiment was

`spark.job`, which writes the tables, documents them. Reading them requires pandas, but neither
Spark nor Java.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench.records import MANIFEST

if TYPE_CHECKING:
    import pandas as pd

RESULTS: Final = "results"
DONE: Final = "results.json"

SUMMARIES: Final = (
    "points",
    "runs",
    "delays",
    "rate_points",
    "checks",
    "engine_checks",
    "traces",
    "trace_counts",
    "skipped",
)


class NoResults(Exception):
    """A directory has no results; the message is one line with what to do."""


class Results:
    """The summaries of one experiment, as pandas DataFrames."""

    points: pd.DataFrame
    runs: pd.DataFrame
    delays: pd.DataFrame
    rate_points: pd.DataFrame
    checks: pd.DataFrame
    engine_checks: pd.DataFrame
    traces: pd.DataFrame
    trace_counts: pd.DataFrame
    skipped: pd.DataFrame

    def __init__(
        self, directory: Path, manifest: dict[str, Any], frames: dict[str, pd.DataFrame]
    ) -> None:
        self.directory = directory
        self.manifest = manifest
        for name in SUMMARIES:
            setattr(self, name, frames[name])

    @property
    def traced_runs(self) -> int:
        """The number of runs whose brokers wrote traces."""
        return int(self.delays["trace"].sum())

    @property
    def traced_engines(self) -> list[str]:
        """The engines of those runs."""
        traced = self.delays.loc[self.delays["trace"], "run"]
        return sorted(self.checks.loc[self.checks["run"].isin(traced), "engine"].unique())

    def transactions(self) -> pd.DataFrame:
        """Each transaction with its latency."""
        return table(self.directory / RESULTS / "transactions.parquet")

    def rates(self) -> pd.DataFrame:
        """Events received in each second of each run."""
        return table(self.directory / RESULTS / "rates.parquet")

    def records(self) -> pd.DataFrame:
        """Every line that a client wrote."""
        return table(self.directory / RESULTS / "records.parquet")


def load(directory: str | Path) -> Results:
    """The results that `padres-tx experiment report` has written for an experiment.

    Raises NoResults.
    """
    place = Path(directory)
    if not place.is_dir():
        raise NoResults(f"no such directory: {str(directory)!r}")
    if not (place / RESULTS / DONE).exists():
        raise NoResults(
            f"no results in {str(directory)!r} yet: run padres-tx experiment report {directory}"
        )
    try:
        import pandas as pd  # noqa: F401 - only whether it is installed
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise NoResults(f"{error.name} is missing: pip install 'padres-tx[spark]'") from None
    try:
        frames = {name: table(place / RESULTS / f"{name}.parquet") for name in SUMMARIES}
        manifest = msgspec.json.decode((place / MANIFEST).read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        if error.filename is not None and Path(error.filename).name == MANIFEST:
            manifest = {}
        else:
            raise NoResults(f"incomplete results in {str(directory)!r}: {error}") from None
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise NoResults(f"cannot read the results in {str(directory)!r}: {error}") from None
    return Results(place, manifest, frames)


def table(place: Path) -> pd.DataFrame:
    """One table of the results, from all its files."""
    import pandas as pd
    import pyarrow.dataset as ds

    # Columns of partitions are text again, not categories.
    table = ds.dataset(place, format="parquet", partitioning="hive").to_table()
    return pd.DataFrame(table.to_pandas())
