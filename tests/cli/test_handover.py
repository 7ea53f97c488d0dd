"""The handover, its judge, and the calibration: small numbers, real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest
from click.testing import CliRunner, Result

from padres_tx.cli.common import CheckFailed
from padres_tx.cli.handover import check
from padres_tx.cli.main import main
from padres_tx.scenarios import calibrate
from padres_tx.scenarios.handover import HandoverCounts, HandoverOutcome
from padres_tx.scenarios.handover_judge import (
    EventStream,
    StreamEvent,
    StreamVerdict,
    judge,
    promises_broken,
)
from topologies import load

KEYS = ["engine", "events", "handovers", "lost", "doubled", "misrouted", "redelivered", "kills"]
KEYS += ["events_per_s"]

#: Two handovers: segments 1..5, 6..10, 11..15, 16..20.
STREAM = EventStream("P", 20, 2)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    # Anything but a clean exit is a traceback to the user.
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


# --- the judge ---


def judged(
    ann: Iterable[int], ben: Iterable[int], committed: tuple[bool, ...] = (True, True)
) -> StreamVerdict:
    def events(numbers: Iterable[int]) -> list[StreamEvent]:
        return [("P", number) for number in numbers]

    return judge([STREAM], {"ann": events(ann), "ben": events(ben)}, committed)


def counts(verdict: StreamVerdict) -> tuple[int, int, int]:
    return verdict.lost, verdict.doubled, verdict.misrouted


def test_one_change_for_each_commit_is_right() -> None:
    right = judged([*range(1, 8), *range(13, 21)], range(8, 13))
    assert counts(right) == (0, 0, 0) and right.faults == []
    # Also at the very ends of where it may be.
    assert counts(judged([*range(1, 7), *range(12, 21)], range(7, 12))) == (0, 0, 0)
    assert counts(judged([*range(1, 11), *range(16, 21)], range(11, 16))) == (0, 0, 0)


def test_planted_losses_are_found() -> None:
    verdict = judged([*range(1, 7), *range(13, 20)], range(8, 13))
    assert counts(verdict) == (2, 0, 0)
    assert verdict.faults == ["event 7 of P was lost", "event 20 of P was lost"]


def test_planted_doubles_are_found() -> None:
    both = judged([*range(1, 9), *range(13, 21)], range(8, 13))
    assert (counts(both), both.twice) == ((0, 1, 0), 0)
    assert both.faults == ["event 8 of P was received by ann and ben"]
    twice = judged([*range(1, 8), 7, *range(13, 21)], range(8, 13))
    assert (counts(twice), twice.twice) == ((0, 1, 0), 1)


@pytest.mark.parametrize(
    ("ann", "ben", "misrouted"),
    [
        # There and back within one handover.
        ([*range(1, 7), 8, *range(13, 21)], [7, *range(9, 13)], 2),
        # One event goes astray where there is no handover.
        ([1, 2, *range(4, 8), *range(13, 21)], [3, *range(8, 13)], 2),
        # The owner changes although the handover is long over.
        ([*range(1, 12), *range(13, 21)], [12], 2),
        # Nothing changes at all.
        (range(1, 21), [], 2),
        # The stream begins with the wrong worker: there is no change left for the first handover.
        (range(13, 21), range(1, 13), 2),
    ],
)
def test_planted_misroutes_are_found(
    ann: Iterable[int], ben: Iterable[int], misrouted: int
) -> None:
    assert counts(judged(ann, ben)) == (0, 0, misrouted)


def test_an_aborted_handover_changes_nothing() -> None:
    assert counts(judged(range(1, 21), [], (False, False))) == (0, 0, 0)
    assert counts(judged(range(1, 13), range(13, 21), (False, True))) == (0, 0, 0)
    assert counts(judged(range(1, 9), range(9, 21), (False, True))) == (0, 0, 2)


def test_each_publisher_is_judged_for_itself() -> None:
    streams = [EventStream("P", 20, 2), EventStream("Q", 20, 2)]
    ann = [("P", n) for n in (*range(1, 8), *range(13, 21))]
    ann += [("Q", n) for n in (*range(1, 10), *range(12, 20))]
    ben = [("P", n) for n in range(8, 13)] + [("Q", n) for n in (10, 11)]
    assert counts(judge(streams, {"ann": ann, "ben": ben}, (True, True))) == (1, 0, 0)


def test_what_each_engine_has_promised() -> None:
    astray = StreamVerdict(lost=1, doubled=3, misrouted=2, twice=1)
    assert promises_broken("d-tx", astray, [], 4, "") == [
        "1 events were received by one worker twice",
        "1 events were lost",
        "2 events were doubled",
        "2 events were misrouted",
        "4 events were late: a worker received them after it had been told that no more would come",
    ]
    assert promises_broken("s-tx", astray, [], 4, "") == [
        "1 events were received by one worker twice"
    ]
    assert promises_broken("bl-wait", StreamVerdict(lost=1, doubled=3), [], 0, "") == []
    assert promises_broken("d-tx", StreamVerdict(), ["conflict"], 0, "late") == [
        "a handover was not committed: conflict",
        "late",
    ]


# --- the command ---


def test_d_tx_loses_doubles_and_misroutes_nothing() -> None:
    done = run("handover", "--engine", "d-tx", "--events", "500", "--handovers", "5", "--json")
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert list(row) == KEYS
    assert row | {"events_per_s": 0} == {
        "engine": "d-tx",
        "events": 500,
        "handovers": 5,
        "lost": 0,
        "doubled": 0,
        "misrouted": 0,
        "redelivered": 0,
        "kills": 0,
        "events_per_s": 0,
    }


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_on_disk_killed_brokers_change_no_count() -> None:
    arguments = ("--engine", "d-tx", "--events", "500", "--handovers", "5", "--durability", "disk")
    done = run("handover", *arguments, "--kill-brokers", "2", "--kill-all", "--json")
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["kills"] == 2 + 3
    assert [row[key] for key in ("lost", "doubled", "misrouted", "redelivered")] == [0, 0, 0, 0]
    assert row["handovers"] == 5


@pytest.mark.parametrize("option", [("--kill-brokers", "1"), ("--kill-all",)])
def test_brokers_are_killed_in_disk_mode_only(option: tuple[str, ...]) -> None:
    done = run("handover", *option)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "need --durability disk" in done.stderr


def test_all_engines_side_by_side() -> None:
    done = run("handover", "--events", "200", "--handovers", "3", "--seed", "1", "--wait-ms", "5")
    assert done.exit_code == 0, done.stderr
    heading, *lines = [line.split() for line in done.stdout.splitlines() if "  " in line]
    assert heading == ["engine", "events", "handovers", "lost", "doubled", "misrouted", "events/s"]
    rows = {line[0]: line[1:] for line in lines if len(line) == 7}
    assert list(rows) == ["d-tx", "d-tx-ni", "s-tx", "bl-wait"]
    assert rows["d-tx"][:5] == ["200", "3", "0", "0", "0"]
    assert all(row[:2] == ["200", "3"] for row in rows.values())
    assert "lost: neither worker received it" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--engine", "dtx"), "no transaction engine 'dtx'"),
        (("--events", "13", "--handovers", "5"), "too few for 5 handovers: expected at least 14"),
        (("--topology", "thre"), "did you mean three?"),
        (("--engine", "d-tx", "--wait-ms", "5"), "expected bl-wait or all"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    done = run("handover", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr and done.stderr.count("\n") == 1


def test_a_broken_promise_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    fine = HandoverOutcome(
        HandoverCounts("s-tx", 20, 2, 3, 0, 0, 0, 0, 100.0), [], ["event 7 of P was lost"]
    )
    check([fine])
    lost = HandoverOutcome(
        HandoverCounts("d-tx", 20, 2, 1, 0, 0, 0, 0, 100.0), ["1 events were lost"], fine.faults
    )
    with pytest.raises(CheckFailed, match="broken promises: d-tx") as failed:
        check([lost, fine])
    assert failed.value.exit_code == 1
    told = capsys.readouterr().err
    assert told == "d-tx: 1 events were lost\nd-tx: event 7 of P was lost\n"


# --- calibration ---


def searched(smallest: int, start: int) -> tuple[int, list[int]]:
    """What the search finds if all waits from `smallest` steps on work, and what it has tried."""
    tried: list[int] = []

    async def works(steps: int, transactions: int) -> bool:
        tried.append(steps)
        return steps >= smallest

    return asyncio.run(calibrate.search(works, start, 100, 1.0)), tried


@pytest.mark.parametrize(("smallest", "start"), [(0, 8), (1, 8), (7, 2000), (2000, 2000), (33, 5)])
def test_the_search_ends_one_step_above_a_failure(smallest: int, start: int) -> None:
    found, tried = searched(smallest, start)
    assert found == smallest
    assert smallest == 0 or smallest - 1 in tried
    assert len(tried) <= 30


def test_a_wait_that_has_failed_once_is_not_taken() -> None:
    tried: list[tuple[int, int]] = []

    async def works(steps: int, transactions: int) -> bool:
        """4 works in short trials, and not in the end."""
        tried.append((steps, transactions))
        return steps >= 5 or (steps == 4 and transactions < 1000)

    assert asyncio.run(calibrate.search(works, 16, 1000, 1.0)) == 5
    assert tried[-2:] == [(4, 1000), (5, 1000)]


def test_no_wait_at_all_works() -> None:
    async def works(steps: int, transactions: int) -> bool:
        return False

    with pytest.raises(calibrate.CalibrationError, match="the longest wait, 60 s, does not work"):
        asyncio.run(calibrate.search(works, 1000, 10, 50.0))


def test_the_step_fits_the_delays() -> None:
    chain = load("three")
    assert calibrate.fitting_step_ms(chain) == 1.0
    edges = tuple(edge.model_copy(update={"delay_ms": 40.0}) for edge in chain.edges)
    slow = chain.model_copy(update={"edges": edges, "client_delay_ms": 10.0})
    assert calibrate.fitting_step_ms(slow) == 10.0


def test_calibrate_tells_what_works_and_what_failed() -> None:
    arguments = ("--topology", "one", "--transactions", "2", "--step-ms", "50", "--start-ms", "200")
    done = run("calibrate", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["topology"], told["transactions"], told["step_ms"]) == ("one", 2, 50.0)
    last = told["trials"][-1]
    assert last == {"wait_ms": told["wait_ms"], "transactions": 2, "failure": ""}
    # Without any wait the publication is faster than those who have to act.
    assert told["failed"]["wait_ms"] == told["wait_ms"] - 50
    assert "the publication reached" in told["failed"]["failure"]


def test_a_step_that_is_none_is_refused() -> None:
    done = run("calibrate", "--step-ms", "fine")
    assert done.exit_code == 2 and "invalid --step-ms 'fine': expected 'auto' or" in done.stderr
