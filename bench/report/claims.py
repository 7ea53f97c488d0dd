"""The claims of the paper and of this project, judged by an experiment's results.

Each claim is a ratio within one sweep, since machines differ. Ratios are taken repetition by
repetition, where both sides had the same placement, and then averaged. A claim holds if its value
is on the right side; a note says whether the whole interval is. A claim about runs that were not
made is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.report.intervals import ConfidenceInterval, Sample, interval, share_lost
from padres_tx import registry
from padres_tx.audit.promises import KINDS, is_promised

if TYPE_CHECKING:
    import pandas as pd

    from bench.report.results import Results

HELD, MISSED, UNKNOWN = "held", "did not hold", "not measured"

#: S-TX over BL-WAIT with the wait of the paper's steps, and with the smallest that works.
MIN_OVER_PAPER_WAIT: Final = 4.0
MIN_OVER_SMALLEST_WAIT: Final = 1.0

#: The growth of latency from the smallest to the largest overlay, over that of message delays.
MAX_OVER_DELAYS: Final = 1.1

#: The share of the event rate that dispatching may cost.
MAX_DROP: Final = {"s-tx": 0.02, "d-tx": 0.05}

#: The least share of the offered rate that has to arrive without dispatching. If less arrives, the
#: machine has become slower since the throughput was measured; the publisher is then slowed down
#: anyway, and the rate says nothing about dispatching.
MIN_OFFERED: Final = 0.98

#: The fewest windows with and without dispatching for which a drop is judged.
MIN_WINDOWS: Final = 30

#: Faults that no engine with atomic transactions may show. Events of `consolidation` cross commits;
#: only an engine that promises handovers promises that none of them is lost, doubled or misrouted.
ALWAYS: Final = ("partial", "out_of_order", "unsent")
CROSSING: Final = ("lost", "doubled", "misrouted")


class JudgedClaim(NamedTuple):
    """A claim, with what was measured and the verdict."""

    what: str
    wanted: str
    seen: str
    verdict: str
    #: How certain the verdict is, and what it rests on.
    note: str = ""


def claims(results: Results) -> list[JudgedClaim]:
    """All claims, in the order of the figures."""
    return [
        *_against_waiting(results.runs),
        *_growth(results.runs, results.delays),
        *_clients(results.runs),
        *_drops(results.rate_points),
        *_correctness(results),
    ]


def _verdict(value: float, *, least: float | None = None, most: float | None = None) -> str:
    good = (least is None or value >= least) and (most is None or value <= most)
    return HELD if good else MISSED


def _sure(
    found: ConfidenceInterval, *, least: float | None = None, most: float | None = None
) -> str:
    if found.low is None or found.high is None:
        return "one repetition: no interval"
    beyond = (least is not None and found.low < least) or (most is not None and found.high > most)
    where = "reaches across the limit" if beyond else "is on one side of the limit"
    return f"{found.size} repetitions; the interval {where}"


def _by_repetition(runs: pd.DataFrame, value: str, **at: Any) -> dict[int, float]:
    chosen = runs
    for column, wanted in at.items():
        chosen = chosen[chosen[column] == wanted]
    chosen = chosen.dropna(subset=[value])
    return {int(r): float(v) for r, v in chosen.groupby("repetition")[value].mean().items()}


def _ratio(over: dict[int, float], under: dict[int, float]) -> ConfidenceInterval | None:
    both = sorted(over.keys() & under.keys())
    ratios = [over[r] / under[r] for r in both if under[r]]
    return interval(ratios) if ratios else None


# --- S-TX beside BL-WAIT ---


def _against_waiting(runs: pd.DataFrame) -> Iterator[JudgedClaim]:
    base = runs[runs["figure"] == 5]
    for series, what, least in (
        ("bl-wait-paper", "the paper's 50 ms steps", MIN_OVER_PAPER_WAIT),
        ("bl-wait-smallest", "the smallest wait that works", MIN_OVER_SMALLEST_WAIT),
    ):
        title = f"S-TX against BL-WAIT with {what}, latency"
        wanted = f"at least {least:g} times faster"
        waiting = _by_repetition(base, "latency_ms_mean", series=series)
        ratio = _ratio(waiting, _by_repetition(base, "latency_ms_mean", series="s-tx"))
        if ratio is None:
            yield JudgedClaim(title, wanted, "", UNKNOWN, "one of the two was not run")
            continue
        yield JudgedClaim(
            title,
            wanted,
            f"{ratio} times",
            _verdict(ratio.mean, least=least),
            _sure(ratio, least=least),
        )


# --- growth with the overlay ---


def _growth(runs: pd.DataFrame, delays: pd.DataFrame) -> Iterator[JudgedClaim]:
    sized = runs[runs["figure"] == 6]
    wanted = f"at most {MAX_OVER_DELAYS:g} times the growth of counted message delays"
    for series in ("s-tx", "d-tx-ni", "d-tx"):
        mine = sized[sized["series"] == series]
        title = f"{series.upper()} from the smallest to the largest overlay, latency"
        if mine.empty or mine["brokers"].nunique() < 2:
            yield JudgedClaim(title, wanted, "", UNKNOWN, "there were not two sizes of overlay")
            continue
        small, large = int(mine["brokers"].min()), int(mine["brokers"].max())
        counted = delays[(delays["figure"] == 6) & (delays["series"] == series)]
        latency, delay = (
            _ratio(
                _by_repetition(frame, column, brokers=large),
                _by_repetition(frame, column, brokers=small),
            )
            for frame, column in ((mine, "latency_ms_mean"), (counted, "counted_delays"))
        )
        if latency is None or delay is None:
            yield JudgedClaim(title, wanted, "", UNKNOWN, "the message delays were not counted")
            continue
        over = latency.mean / delay.mean
        seen = (
            f"{over:.2f}: {latency} times the latency, {delay.mean:.3g} times the delays, "
            f"{small} to {large} brokers"
        )
        note = _sure(latency, most=MAX_OVER_DELAYS * delay.mean)
        yield JudgedClaim(title, wanted, seen, _verdict(over, most=MAX_OVER_DELAYS), note)


# --- many clients ---


def _clients(runs: pd.DataFrame) -> Iterator[JudgedClaim]:
    mine = runs[runs["figure"] == 8]
    title, wanted = "D-TX's throughput from 20 to 40 clients", "still rises"
    ratio = _ratio(
        _by_repetition(mine, "throughput_per_s", series="d-tx", clients=40),
        _by_repetition(mine, "throughput_per_s", series="d-tx", clients=20),
    )
    if ratio is None:
        yield JudgedClaim(title, wanted, "", UNKNOWN, "20 and 40 clients were not both run")
    else:
        verdict = HELD if ratio.mean > 1 else MISSED
        yield JudgedClaim(title, wanted, f"{ratio} times", verdict, _sure(ratio, least=1.0))


# --- regular traffic ---


def _drops(points: pd.DataFrame) -> Iterator[JudgedClaim]:
    stream = points[(points["figure"] == 9) & points["offered_per_s"].notna()]
    for series, most in MAX_DROP.items():
        title = f"Regular traffic while {series.upper()} dispatches: drop of the event rate"
        wanted = f"below {most:.0%}"
        mine = stream[stream["series"] == series]
        with_it = mine[mine["dispatch"] & mine["busy"]]
        without = mine[~mine["dispatch"]]
        both = sorted(set(with_it["repetition"]) & set(without["repetition"]))
        if not both:
            yield JudgedClaim(
                title, wanted, "", UNKNOWN, "not run with and without dispatching at a fixed rate"
            )
            continue
        kept = [r for r in both if _share(without[without["repetition"] == r]).mean >= MIN_OFFERED]
        note = (
            f"in {len(kept)} of {len(both)} repetitions the machine kept {MIN_OFFERED:.0%} of the "
        )
        note += "offered rate without dispatching"
        with_it, without = (side[side["repetition"].isin(kept)] for side in (with_it, without))
        fewest = int(min(with_it["windows"].sum(), without["windows"].sum()))
        if not kept:
            yield JudgedClaim(title, wanted, "", UNKNOWN, note)
            continue
        drop = share_lost(_share(without), _share(with_it))
        seen = f"{drop.mean:.2%}"
        if drop.low is not None and drop.high is not None:
            seen += f" [{drop.low:.2%}, {drop.high:.2%}]"
        note += f"; there, at least {fewest} windows of a second on either side"
        verdict = HELD if drop.mean < most else MISSED
        if fewest < MIN_WINDOWS:
            verdict = UNKNOWN
            note += f", too few: {MIN_WINDOWS} are required"
        yield JudgedClaim(title, wanted, seen, verdict, note)


def _share(points: pd.DataFrame) -> Sample:
    """The windows of several points as one sample, each as a share of the offered rate."""
    windows, offered = points["windows"], points["offered_per_s"]
    means, deviations = points["events_per_s"] / offered, points["events_per_s_sd"] / offered
    count = int(windows.sum())
    mean = float((means * windows).sum() / count)
    within = deviations.fillna(0.0) ** 2 * (windows - 1)
    between = (means - mean) ** 2 * windows
    variance = float((within + between).sum()) / max(1, count - 1)
    return Sample(count, mean, variance**0.5)


# --- correctness ---


def _correctness(results: Results) -> Iterator[JudgedClaim]:
    for row in results.engine_checks.to_dict("records"):
        engine = registry.properties(row["engine"])
        if "partial" not in engine.promises:
            continue
        promised = list(ALWAYS)
        if "handover" in engine.promises or row["workload"] in ("dispatching", "stream"):
            promised += CROSSING
        faults = {name: int(row[name]) for name in promised if row[name]}
        title = f"{row['series'].upper()}, {row['workload']}: what clients sent and received"
        found = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in faults.items())
        yield JudgedClaim(
            title,
            "no " + ", ".join(name.replace("_", " ") for name in promised),
            found or f"none of {int(row['sent']):,} events",
            MISSED if faults else HELD,
            f"{int(row['runs'])} runs",
        )
    if results.traced_runs:
        yield _traces(results)


def _traces(results: Results) -> JudgedClaim:
    """The anomalies in brokers' traces, against what each engine promises."""
    broken: list[str] = []
    allowed: list[str] = []
    for row in results.trace_counts.to_dict("records"):
        engine, kind = str(row["engine"]), str(row["kind"])
        found = f"{engine or 'plain'}: {int(row['found'])} {kind}"
        (broken if is_promised(kind, engine) else allowed).append(found)
    note = f"{results.traced_runs} runs were traced"
    if allowed:
        note += f"; found, and not promised to be absent: {', '.join(allowed)}"
    return JudgedClaim(
        f"Brokers' traces: {', '.join(KINDS)}",
        "none that an engine promises never to show",
        ", ".join(broken) or "none",
        MISSED if broken else HELD,
        note,
    )
