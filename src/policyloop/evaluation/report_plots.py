"""Curves as inline SVG that follow the page's light or dark colours.

In: lines (numbers by step) and levels (dashed). Out: one `<figure>` string without script, network or fixed colours: every colour that
matplotlib writes is replaced by a CSS variable of the page (`--ink`, `--muted`, `--rule`, `--run0` ...).

Example:
    >>> figure("Reward", "mean of sampled answers", "reward", [Line("a", 0, [1, 2], [0.1, 0.4])])[:26]
    '<figure><figcaption><b>Rew'
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RUNS = 6  # colours (and markers) that are told apart; more runs start over
MARKERS = "osD^vP"
# written by matplotlib, replaced afterwards: no line of a plot may use these for anything else
INK, MUTED, RULE = "#010101", "#020202", "#030303"
RUN = tuple(f"#0400{i:02d}" for i in range(RUNS))
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", **{c: f"var(--run{i})" for i, c in enumerate(RUN)}}
SMOOTH_FROM = 24  # points from which a running mean is drawn over the raw steps


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of run number `run`. low, high: its interval, drawn as a band. points: few measured points, with markers. dashes: of further
    curves of the same run. arrows: x is no step, the order of the points matters."""

    name: str
    run: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    points: bool = False
    dashes: str = "-"
    arrows: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A dashed horizontal line with its name on it: what an untouched model does."""

    name: str
    y: float


def figure(
    title: str,
    note: str,
    unit: str,
    lines: Sequence[Line],
    *,
    levels: Sequence[Level] = (),
    xlabel: str = "step",
    share: bool = False,
    wide: bool = False,
) -> str:
    """A figure with its caption; empty where there is nothing to draw. share: the axis is 0 to 1."""
    drawn = [line for line in lines if len(line.y)]
    if not drawn:
        return ""
    svg = _svg(title, unit, drawn, levels, xlabel, share, (10.4, 3.4) if wide else (5.1, 2.6))
    said = "; ".join(f"{line.name} from {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in drawn)
    kind = ' class="wide"' if wide else ""
    return (
        f"<figure{kind}><figcaption><b>{html.escape(title)}</b> <span>{html.escape(note)}</span></figcaption>"
        f'<div role="img" aria-label="{html.escape(f"{title}: {said}", quote=True)}">{svg}</div></figure>'
    )


def _svg(
    title: str, unit: str, lines: Sequence[Line], levels: Sequence[Level], xlabel: str, share: bool, size: tuple[float, float]
) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"{title}{[line.name for line in lines]}",
        "font.size": 9.0,
    }
    with matplotlib.rc_context(settings):
        picture = Figure(figsize=size, layout="constrained", facecolor="none")
        axes = picture.subplots(subplot_kw={"facecolor": "none"})
        _levels(axes, levels)
        for line in lines:
            _draw(axes, line)
        if share:
            axes.set_ylim(-0.02, 1.02)
        if xlabel == "step":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
            seen = {x for line in lines for x in line.x}
            axes.set_xlim(*((min(seen) - 1, max(seen) + 1) if len(seen) == 1 else (None, None)))
        axes.set_xlabel(xlabel, color=MUTED)
        axes.set_ylabel(unit, color=MUTED)
        axes.grid(color=RULE, lw=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(colors=MUTED, length=0)
        for name, side in axes.spines.items():
            side.set_visible(name in ("left", "bottom"))
            side.set_color(RULE)
        out = io.StringIO()
        FigureCanvasSVG(picture).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    return themed(text[text.index("<svg") :].strip())


def _draw(axes: Any, line: Line) -> None:
    colour, marker = RUN[line.run % RUNS], MARKERS[line.run % RUNS]
    if len(line.low):
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, lw=0)
    if line.arrows:
        axes.plot(line.x, line.y, color=colour, lw=1.0, alpha=0.6)
        axes.scatter(
            line.x, line.y, s=[16 + 40 * i / max(1, len(line.y) - 1) for i in range(len(line.y))], color=colour, marker=marker
        )
    elif line.points:
        axes.plot(line.x, line.y, line.dashes, color=colour, lw=1.8, marker=marker, ms=5)
    elif len(line.y) >= SMOOTH_FROM:
        axes.plot(line.x, line.y, line.dashes, color=colour, lw=0.8, alpha=0.45)
        axes.plot(line.x, running_mean(line.y), line.dashes, color=colour, lw=1.8)
    else:
        axes.plot(line.x, line.y, line.dashes, color=colour, lw=1.6, marker="." if len(line.y) == 1 else None)


def _levels(axes: Any, levels: Sequence[Level]) -> None:
    """Names stand on their lines at the right edge; of lines too close together the upper one keeps its name."""
    last = float("inf")
    for level in sorted(levels, key=lambda level: -level.y):
        axes.axhline(level.y, ls=(0, (5, 4)), lw=1.2, color=MUTED)
        if last - level.y > 0.05:
            axes.text(
                1.0, level.y, level.name, color=MUTED, ha="right", va="bottom", transform=axes.get_yaxis_transform(), fontsize=8
            )
            last = level.y


def running_mean(y: Sequence[float], reach: int | None = None) -> list[float]:
    """Mean over `reach` values on either side (a thirtieth of all by default), fewer at the ends but alike on both sides: no lag."""
    reach, n = reach or max(1, len(y) // 30), len(y)
    reaches = [min(reach, i, n - 1 - i) for i in range(n)]
    return [sum(y[i - r : i + r + 1]) / (2 * r + 1) for i, r in enumerate(reaches)]


def themed(svg: str) -> str:
    """Colours become the page's variables, the font the page's own, the size that of its place; ids that nothing refers to and rules that
    would reach out of the figure go."""
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg).replace("xlink:href", "href")
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]*)"', svg)
    body = svg.split(">", 1)[1]
    return f'<svg viewBox="{box[1] if box else ""}">{body}'
