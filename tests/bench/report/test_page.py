"""The page: self-contained, escaped, and readable in a real browser where there is one."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from bench.report.claims import HELD, MISSED, UNKNOWN, JudgedClaim, claims
from bench.report.page import NOTES, render, write
from bench.report.results import Results
from padres_tx.audit.promises import KINDS, MEANING

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page(HTMLParser):
    """What a page asks for, and which elements it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.asks: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action") and value:
                self.asks.append(value)


@pytest.fixture(scope="module")
def page(results: Results) -> Path:
    (results.directory / NOTES).write_text("<script>alert('notes')</script> & more")
    return write(results)


def test_nothing_is_asked_from_a_network(page: Path) -> None:
    found = Page(page.read_text("utf-8"))
    assert found.tags.count("svg") == 4  # Figure 5: latency, throughput; 9: two variants.
    assert "script" not in found.tags
    assert all(address.startswith("#") for address in found.asks)
    assert not re.search(r"@import|url\((?!#)", page.read_text("utf-8"))


def test_what_files_say_is_text_and_no_markup(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "&lt;script&gt;alert(&#39;notes&#39;)&lt;/script&gt; &amp; more" in text


def test_a_series_name_that_is_markup_or_a_formula_stays_text(results: Results) -> None:
    evil = "<img src=x onerror=alert(1)>$\\frac{"
    frames = {name: getattr(results, name).copy() for name in ("points", "runs")}
    for frame in frames.values():
        frame["series"] = frame["series"].replace("d-tx", evil)
    changed = Results(results.directory, results.manifest, {**vars(results), **frames})
    assert "img" not in Page(render(changed)).tags


def test_made_up_records_are_called_so(page: Path) -> None:
    assert "These records are made up" in page.read_text("utf-8")


def test_what_could_not_be_used_is_in_it(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "Some input could not be used: 4 files or runs, 5 lines." in text
    assert "runs/base-three-s-tx-c1-i1-r1/clients/E.1.jsonl" in text


def test_claims_are_judged_and_planted_faults_break_one(results: Results) -> None:
    judged = {claim.what: claim for claim in claims(results)}
    paper = judged["S-TX against BL-WAIT with the paper's 50 ms steps, latency"]
    assert paper.verdict == HELD and "2 repetitions" in paper.note
    assert judged["D-TX's throughput from 20 to 40 clients"].verdict == UNKNOWN
    assert judged["D-TX, stream: what clients sent and received"].verdict == MISSED
    assert judged["S-TX, stream: what clients sent and received"].verdict == HELD


def with_traces(results: Results, *counts: tuple[str, str, int]) -> Results:
    """The same results, had brokers been traced and this been found: engine, kind, how often."""
    rows = [(engine, kind, found, 1) for engine, kind, found in counts]
    frames = {
        **vars(results),
        "delays": results.delays.assign(trace=True),
        "trace_counts": pd.DataFrame(rows, columns=["engine", "kind", "found", "runs"]),
    }
    return Results(results.directory, results.manifest, frames)


def test_traces_are_held_against_what_each_engine_promises(results: Results) -> None:
    def judged(*counts: tuple[str, str, int]) -> JudgedClaim:
        changed = with_traces(results, *counts)
        return next(c for c in claims(changed) if c.what.startswith("Brokers' traces"))

    assert judged().verdict == HELD
    assert all(kind in judged().what for kind in KINDS)
    allowed = judged(("s-tx", "cycle", 2), ("d-tx-ni", "handover", 3))
    assert allowed.verdict == HELD and allowed.seen == "none"
    assert "d-tx-ni: 3 handover" in allowed.note and "s-tx: 2 cycle" in allowed.note
    broken = judged(("s-tx", "cycle", 2), ("d-tx", "cycle", 1), ("", "divergence", 4))
    assert broken.verdict == MISSED
    assert "d-tx: 1 cycle" in broken.seen and "plain: 4 divergence" in broken.seen
    assert "s-tx" not in broken.seen


def test_a_drop_is_judged_where_the_machine_kept_the_offered_rate(results: Results) -> None:
    def judged(*received: tuple[float, float, float], windows: int = 20) -> JudgedClaim:
        """Of repetitions: what is offered, and what comes without and with dispatching."""
        columns = ["figure", "series", "repetition", "dispatch", "busy"]
        columns += ["windows", "events_per_s", "events_per_s_sd", "offered_per_s"]
        rows = [
            (9, "s-tx", number, dispatch, dispatch, windows, events, 50.0, offered)
            for number, (offered, without, with_it) in enumerate(received, 1)
            for dispatch, events in ((False, without), (True, with_it))
        ]
        frames = {**vars(results), "rate_points": pd.DataFrame(rows, columns=columns)}
        changed = Results(results.directory, results.manifest, frames)
        found = (c for c in claims(changed) if c.what.startswith("Regular traffic while S-TX"))
        return next(found)

    # What is offered may differ between repetitions: that is no drop, and no noise.
    held = judged((10_000, 10_000, 9_900), (5_000, 5_000, 4_950))
    assert held.verdict == HELD and held.seen.startswith("1.00% [0.")
    assert "2 of 2 repetitions" in held.note and "40 windows" in held.note
    assert judged((10_000, 10_000, 9_700), (5_000, 5_000, 4_850)).verdict == MISSED
    # One in which the machine became too slow is left out, whatever it would show.
    slow = judged((10_000, 10_000, 9_900), (10_000, 7_000, 2_000), (10_000, 9_990, 9_900))
    assert slow.verdict == HELD and "2 of 3 repetitions" in slow.note
    assert judged((10_000, 7_000, 7_000), windows=60).verdict == UNKNOWN
    assert judged((10_000, 10_000, 9_900)).verdict == UNKNOWN
    assert "too few" in judged((10_000, 10_000, 9_900)).note


def test_the_page_says_which_anomalies_were_looked_for(results: Results) -> None:
    text = render(with_traces(results, ("s-tx", "dirty", 7)))
    for kind, meaning in MEANING.items():
        assert f"{kind}: {meaning}" in html.unescape(text)
    dirty = text[text.index("dirty: ") :]
    cells = re.findall(r"<td>((?:never|may): \d+)</td>", dirty[: dirty.index("</tr>")])
    # The engines in the order of their names, then what is plain.
    assert cells == ["may: 0", "never: 0", "may: 0", "may: 7", "may: 0"]


def test_a_browser_shows_it(page: Path, tmp_path: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        why = f"no browser on PATH ({', '.join(BROWSERS)})"
        if os.environ.get("PADRES_TX_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    picture = tmp_path / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,2400"]
    # As in a cell of a train: whatever it asked for would fail, and be told.
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000"]
    dom = _run(browser, *options, "--dump-dom", page.as_uri())
    assert dom.count("<svg") == 4
    assert "What held, and what did not" in dom
    _run(browser, *options, f"--screenshot={picture}", page.as_uri())
    assert picture.stat().st_size > 20_000


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
