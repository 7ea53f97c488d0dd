"""The same job on a standalone cluster: a real master and two workers, on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.report.results import load
from bench.spark import synthetic
from padres_tx.java import find_java

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

#: What a process of the cluster says when it is ready, at the end of its log.
MASTER_READY = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
WORKER_READY = re.compile(r"Successfully registered with master")

#: A JVM on a busy machine.
START_S = 120


REPORT = [
    *(sys.executable, "-c"),
    "from bench.experiments.cli import experiment; experiment()",
    "report",
]
#: Executors of the two workers fit beside each other, and beside everything else.
SUBMIT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=512m --conf spark.driver.host=127.0.0.1 "
    "--conf spark.sql.codegen.wholeStage=false pyspark-shell",
}


@contextmanager
def jvm(name: str, main: str, *arguments: str, directory: Path) -> Iterator[Path]:
    """A process of Spark's own classes; yields its log, and ends it by its id."""
    import pyspark

    home = Path(pyspark.__file__).parent
    jars = home / "jars" / "*"
    log = directory / f"{name}.log"
    java = [str(find_java() / "bin" / "java"), "-cp", str(jars), "-Xmx256m"]
    java += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", main]
    # Where a worker looks for what its executors run, as Spark's own scripts tell it.
    scala = next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0]
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": scala,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*java, *arguments], stdout=out, stderr=out, env=environment, cwd=directory
        )
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
    """Wait until a log has it; whoever writes it is bounded by the test's own time-out."""
    with (
        log.open("rb") as file,
        subprocess.Popen(
            ["tail", "-n", "+1", "-F", str(log)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as tail,
    ):
        assert tail.stdout is not None
        try:
            for line in tail.stdout:
                found = pattern.search(line.decode(errors="replace"))
                if found is not None:
                    return found
        finally:
            tail.terminate()
        raise AssertionError(file.read().decode(errors="replace"))


def go_nowhere(brokers: Path) -> str:
    """Let a broker say that it sent a plain publication nowhere; answers the publication's name."""
    path = brokers / "B2.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    routed = next(r for r in records if r["kind"] == "match" and "tx" not in r)
    del routed["dests"]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(routed["op_id"])


@pytest.mark.timeout(START_S * 4)
def test_a_report_by_a_master_and_two_workers(tmp_path: Path) -> None:
    """Submitted as people do: in a process of its own, with the address of the master."""
    experiment = tmp_path / "experiment"
    synthetic.write(experiment, transactions=4, repetitions=1, figures=(5,), traced=True)
    gone_wrong = go_nowhere(experiment / "runs" / "base-three-d-tx-c1-i1-r1" / "brokers")
    local = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with jvm("master", "org.apache.spark.deploy.master.Master", *local, directory=tmp_path) as log:
        url = said(log, MASTER_READY)[1]
        limits = [*local, "--cores", "1", "--memory", "1g", url]
        worker = "org.apache.spark.deploy.worker.Worker"
        with (
            jvm("worker-1", worker, *limits, directory=tmp_path) as one,
            jvm("worker-2", worker, *limits, directory=tmp_path) as other,
        ):
            said(one, WORKER_READY)
            said(other, WORKER_READY)
            done = subprocess.run(
                [*REPORT, str(experiment), "--master", url],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | SUBMIT,
            )
            assert done.returncode == 0, done.stderr
            # It was the workers who did it: each has started an executor for the job.
            for log_of_worker in (one, other):
                assert "Asked to launch executor" in log_of_worker.read_text(errors="replace")
    results = load(experiment)
    assert results.points["committed"].tolist() == [4] * len(synthetic.SERIES)
    assert len(results.skipped) == 0
    # What was planted is found by workers that were shipped what they need for it.
    verdicts = [tuple(row) for row in results.traces[["kind", "engine", "tx"]].to_numpy()]
    assert verdicts == [("divergence", "", gone_wrong)]
    assert (experiment / "report" / "index.html").is_file()
