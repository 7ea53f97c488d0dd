"""The paper's Figures 5 to 9 with our measurements, each as SVG text for a page.

Readable in print and by the colour-blind: the colours are Okabe and Ito's, and every series also
has its own marker, line style and hatch. Bars and marks have the confidence intervals over
repetitions. The paper's values are drawn hollow or as a dashed line, never in a series' style.

Directories and Spark must not be known here.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class SeriesStyle(NamedTuple):
    colour: str
    marker: str
    line: Any
    hatch: str
    label: str


#: Okabe and Ito's palette.
STYLES: Final[Mapping[str, SeriesStyle]] = {
    "d-tx": SeriesStyle("#0072B2", "s", "-", "//", "D-TX"),
    "d-tx-ni": SeriesStyle("#56B4E9", "o", "--", "\\\\", "D-TX-NI"),
    "s-tx": SeriesStyle("#009E73", "^", "-.", "..", "S-TX"),
    "bl-wait-smallest": SeriesStyle("#E69F00", "D", ":", "xx", "BL-WAIT, smallest wait"),
    "bl-wait-paper": SeriesStyle("#D55E00", "v", (0, (3, 1, 1, 1)), "++", "BL-WAIT, 50 ms steps"),
}
#: For other series, in this order.
OTHERS: Final = (
    ("#CC79A7", "P", "-", "oo"),
    ("#000000", "X", "--", "**"),
    ("#F0E442", "h", "-.", "--"),
)

PAPER: Final = "#555555"

#: Inches: two beside each other on a page.
SIZE: Final = (5.4, 3.4)


def styles(series: list[str]) -> dict[str, SeriesStyle]:
    """A style for each series; other series take those of OTHERS in turn."""
    found = {name: STYLES[name] for name in series if name in STYLES}
    unknown = [name for name in series if name not in STYLES]
    for number, name in enumerate(unknown):
        found[name] = SeriesStyle(*OTHERS[number % len(OTHERS)], _literally(name))
    return found


def in_order(series: Any) -> list[str]:
    """Known series as the paper lists them, then the others."""
    names = set(series)
    return [name for name in STYLES if name in names] + sorted(names - STYLES.keys())


def _axes(title: str) -> tuple[Any, Any]:
    # Not pyplot: that keeps figures, and looks for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(_literally(title), fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Any, name: str) -> str:
    """The figure's SVG element, with unique ids, since a page has several."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :].replace("<svg ", '<svg role="img" ', 1)


def bars(
    points: pd.DataFrame, value: str, *, title: str, unit: str, paper: Mapping[str, float]
) -> str:
    """One bar for each series, with the paper's value as a hollow mark (Figure 5)."""
    figure, axes = _axes(title)
    names = in_order(points["series"])
    looks = styles(names)
    rows = points.set_index("series")
    for at, name in enumerate(names):
        row, look = rows.loc[name], looks[name]
        error = row[f"{value}_ci"]
        axes.bar(
            at,
            row[value],
            yerr=None if error != error else error,
            color=look.colour,
            hatch=look.hatch,
            edgecolor="black",
            linewidth=0.7,
            capsize=4,
            width=0.65,
        )
        axes.annotate(
            _short(row[value]),
            (at, row[value]),
            (-4, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    theirs = [(at, paper[name]) for at, name in enumerate(names) if name in paper]
    if theirs:
        axes.plot(
            *zip(*theirs, strict=True),
            linestyle="none",
            marker="_",
            markersize=26,
            markeredgewidth=2,
            color=PAPER,
            label="paper",
        )
        # Outside the axes, where no bar can cover it.
        figure.legend(fontsize=8, frameon=False, loc="outside lower center")
    axes.set_xticks(range(len(names)), [_wrapped(looks[name].label) for name in names], fontsize=8)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    return _svg(figure, title)


def lines(
    points: pd.DataFrame,
    by: str,
    value: str,
    *,
    title: str,
    unit: str,
    across: str,
    paper: Mapping[str, Mapping[int, float]],
) -> str:
    """A line for each series over one dimension (Figures 6 to 8)."""
    figure, axes = _axes(title)
    names = in_order(points["series"])
    looks = styles(names)
    for name in names:
        rows, look = points[points["series"] == name].sort_values(by), looks[name]
        axes.errorbar(
            rows[by],
            rows[value],
            yerr=rows[f"{value}_ci"].fillna(0),
            color=look.colour,
            marker=look.marker,
            linestyle=look.line,
            markeredgecolor="black",
            markeredgewidth=0.5,
            capsize=3,
            label=look.label,
        )
        if name in paper:
            axes.plot(
                list(paper[name]),
                list(paper[name].values()),
                color=PAPER,
                marker=look.marker,
                markerfacecolor="white",
                linestyle=(0, (1, 3)),
                label=f"{look.label}, paper",
            )
    axes.set_xticks(sorted(set(points[by])))
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False)
    return _svg(figure, title)


def course(rates: pd.DataFrame, *, title: str) -> str:
    """Events per second over time, one repetition of each series (Figure 9)."""
    figure, axes = _axes(title)
    names = in_order(rates["series"])
    looks = styles(names)
    for name in names:
        rows, look = rates[rates["series"] == name].sort_values("second"), looks[name]
        axes.plot(
            rows["second"],
            rows["events"],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=3,
            linewidth=1,
            label=look.label,
        )
        busy = rows[rows["open_transactions"] > 0]
        axes.plot(
            busy["second"],
            busy["events"],
            linestyle="none",
            marker=look.marker,
            markersize=7,
            markerfacecolor="none",
            markeredgecolor="black",
            label=f"{look.label}, dispatching",
        )
    axes.set_xlabel("seconds since the first event")
    axes.set_ylabel("events/s at the agents")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False, ncols=2)
    return _svg(figure, title)


def _literally(text: str) -> str:
    """A name from a file, with formula characters escaped."""
    return text.replace("$", r"\$")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def _wrapped(label: str) -> str:
    return label.replace(", ", ",\n")
