"""The report: run folders in, one self-contained HTML page out (no network); or one group explained in the terminal.

Shows, per run and laid over each other: held-out accuracy with its interval and the untouched model's baselines, reward and its parts, length,
signal; what guards said; and the group picture: one prompt, its answers by reward, advantage, tokens coloured by log-prob after - before.

Example: `policyloop report runs/a runs/b` writes runs/a/report.html.
"""

from __future__ import annotations

import html
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policyloop.errors import BadInput, NotFound

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart without red and green (Okabe-Ito)
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run folder says."""

    name: str
    path: Path
    metrics: Rows
    events: Rows
    manifest: dict[str, Any]
    config: str

    def series(self, key: str) -> tuple[list[float], list[float]]:
        """Steps and values where the key is there and a number."""
        rows = [r for r in self.metrics if isinstance(r.get(key), (int, float))]
        return [r["step"] for r in rows], [r[key] for r in rows]

    def of(self, kind: str) -> Rows:
        return [e for e in self.events if e.get("kind") == kind]


def read_run(path: Path) -> RunData:
    """Errors: NotFound when the folder holds no run."""
    if not (path / "manifest.json").exists():
        raise NotFound(f"{path} holds no run", "a folder written by `policyloop train`", "RUN")
    config = (path / "config.yaml").read_text(encoding="utf-8") if (path / "config.yaml").exists() else ""
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    return RunData(path.name, path, _lines(path / "metrics.jsonl"), _lines(path / "events.jsonl"), manifest, config)


def _lines(path: Path) -> Rows:
    rows: Rows = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:  # a half-written last line
            continue
    return rows


# --- plots ------------------------------------------------------------------------------------------------------------------


def _plot(title: str, unit: str, draw: Any) -> str:
    """One figure as inline SVG with transparent ground, so that it sits on light and dark pages."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "font.size": 10, "text.color": "#777", "axes.labelcolor": "#777"})
    figure, axes = plt.subplots(figsize=(6.4, 3.0), layout="constrained")
    draw(axes)
    axes.set_title(title, loc="left", color="#777")
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.25)
    axes.tick_params(colors="#777")
    for side in axes.spines.values():
        side.set_color("#999")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, labelcolor="#777")
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    svg = out.getvalue()
    return f'<figure role="img" aria-label="{html.escape(title)}">{svg[svg.index("<svg") :]}</figure>'


def accuracy_plot(runs: Sequence[RunData]) -> str:
    """Held-out accuracy with its interval; the untouched model as dashed lines."""

    def draw(axes: Any) -> None:
        for run, colour in zip(runs, COLOURS * 3, strict=False):
            steps, values = run.series("eval/accuracy")
            lows, highs = run.series("eval/accuracy_low")[1], run.series("eval/accuracy_high")[1]
            for b in run.of("baseline"):
                label = f"untouched, limit {b.get('limit_tokens', '?')}" if run is runs[0] else None
                axes.axhline(b["accuracy"], ls="--", lw=1, color=colour, alpha=0.7, label=label)
                steps, values, lows, highs = (
                    [0, *steps],
                    [b["accuracy"], *values],
                    [b["accuracy_low"], *lows],
                    [b["accuracy_high"], *highs],
                )
            axes.plot(steps, values, marker="o", ms=4, color=colour, label=run.name)
            axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, lw=0)
        axes.set_ylim(0, 1.02)

    return _plot("Held-out accuracy, 95 % interval", "accuracy", draw)


def line_plot(runs: Sequence[RunData], title: str, unit: str, keys: Sequence[str]) -> str:
    """One line per run and key; empty where no run has it."""
    if not any(run.series(key)[0] for run in runs for key in keys):
        return ""

    def draw(axes: Any) -> None:
        for run, colour in zip(runs, COLOURS * 3, strict=False):
            for key, style in zip(keys, ("-", ":", "--", "-."), strict=False):
                steps, values = run.series(key)
                if steps:
                    label = run.name if len(keys) == 1 else f"{run.name}: {key.rpartition('/')[2].replace('_', ' ')}"
                    axes.plot(steps, values, style, color=colour, lw=1.4, label=label)

    return _plot(title, unit, draw)


def scatter_plot(runs: Sequence[RunData]) -> str:
    """Held-out accuracy against length, in the order of the steps."""
    if not any(run.series("eval/length_mean")[0] for run in runs):
        return ""

    def draw(axes: Any) -> None:
        for run, colour in zip(runs, COLOURS * 3, strict=False):
            x, y = run.series("eval/length_mean")[1], run.series("eval/accuracy")[1]
            for b in run.of("baseline"):
                x, y = [b["length_mean"], *x], [b["accuracy"], *y]
            axes.plot(x, y, "-o", ms=4, lw=0.8, color=colour, label=run.name)

    return _plot("Held-out accuracy against length", "accuracy", draw).replace(">step<", ">tokens per answer<")


# --- one group --------------------------------------------------------------------------------------------------------------


def groups_of(path: Path, step: int) -> Rows:
    file = path / "samples" / f"{step:08d}.jsonl"
    if not file.exists():
        there = sorted(int(p.stem) for p in (path / "samples").glob("*.jsonl"))
        shown = f"{there[0]} to {there[-1]}" if there else "none"
        raise NotFound(f"{path} has no samples of step {step}", f"one of the steps that were kept: {shown}", "--step")
    return _lines(file)


def pick_group(groups: Rows, prompt: str | None) -> dict[str, Any]:
    """By prompt id, by number, or the first with a spread of rewards."""
    if prompt is None:
        return max(groups, key=_interest)
    if prompt.isdigit() and int(prompt) < len(groups):
        return groups[int(prompt)]
    found = [g for g in groups if prompt in (g["prompt_id"], g["uid"])]
    if not found:
        raise NotFound(f"no prompt {prompt} in this step", f"0 to {len(groups) - 1}, or a prompt id", "--prompt")
    return found[0]


def _interest(group: dict[str, Any]) -> tuple[bool, float]:
    """A group is worth a look when its rewards differ, more so when the log-probs after the update are there."""
    rewards = [c["reward"] for c in group["completions"] if c["reward"] is not None]
    spread = max(rewards) - min(rewards) if rewards else 0.0
    return spread > 0, spread + (group["completions"][0].get("logprobs_after") is not None)


def by_reward(group: dict[str, Any]) -> Rows:
    return sorted(group["completions"], key=lambda c: (-(c["reward"] if c["reward"] is not None else -1e9), c["length"]))


def group_picture(group: dict[str, Any]) -> str:
    """The prompt, its answers sorted by reward, and what the update did to every token."""
    rows = "".join(_answer(c) for c in by_reward(group))
    return (
        f'<p class="prompt"><b>Prompt</b> {html.escape(group["prompt"])}<br><b>Right answer</b> {html.escape(str(group["target"]))}</p>'
        '<p class="note">Each token is coloured by how the update changed its log-probability: '
        '<span style="background:rgba(0,114,178,.45)">more likely</span> <span style="background:rgba(213,94,0,.45)">less likely</span>; '
        "grey rows were left out by the filter.</p>"
        '<table class="group"><tr><th>reward</th><th>parts</th><th>advantage</th><th>tokens</th><th>answer</th></tr>'
        + rows
        + "</table>"
    )


def _answer(c: dict[str, Any]) -> str:
    after = c.get("logprobs_after")
    tokens = c.get("tokens") or [c["text"]]
    changes = [None] * len(tokens) if after is None else [a - (b or 0.0) for a, b in zip(after, c["logprobs"], strict=False)]
    pieces = "".join(_token(t, d) for t, d in zip(tokens, changes, strict=False))
    reward = "unscored" if c["reward"] is None else f"{c['reward']:.2f}"
    parts = "".join(_bar(name, value) for name, value in c["components"].items() if value is not None)
    a = c["advantage"]
    side = "#0072b2" if a >= 0 else "#d55e00"
    arrow = f'<span class="bar" style="width:{min(60, abs(a) * 30):.0f}px;background:{side}"></span> {a:+.2f}'
    kind = "" if c["keep"] else ' class="out"'
    return f"<tr{kind}><td>{reward}</td><td>{parts}</td><td>{arrow}</td><td>{c['length']} {c['finish_reason']}</td><td>{pieces}</td></tr>"


def _bar(name: str, value: float) -> str:
    width = min(60, abs(value) * 40)
    return f'<div class="part"><span class="bar" style="width:{width:.0f}px;background:#009e73"></span> {html.escape(name)} {value:.2f}</div>'


def _token(text: str, change: float | None) -> str:
    shown = html.escape(text).replace("\n", "↵")
    if change is None:
        return f"<span>{shown}</span>"
    colour = "0,114,178" if change > 0 else "213,94,0"
    return f'<span title="{change:+.3f} nats" style="background:rgba({colour},{min(0.8, abs(change) * 1.5):.2f})">{shown}</span>'


def explain(path: Path, step: int, prompt: str | None) -> None:
    """The same numbers in the terminal."""
    from rich.console import Console
    from rich.table import Table

    group = pick_group(groups_of(path, step), prompt)
    console = Console()
    console.print(
        f"[bold]step {step}, prompt {group['prompt_id']}[/bold]\n{group['prompt']}\nright answer: {group['target']}",
        highlight=False,
    )
    table = Table("reward", "parts", "advantage", "kept", "tokens", "log-prob change", "answer")
    for c in by_reward(group):
        after = c.get("logprobs_after")
        change = "-" if after is None else f"{sum(a - (b or 0) for a, b in zip(after, c['logprobs'], strict=False)):+.2f}"
        parts = ", ".join(f"{n} {v:.2f}" for n, v in c["components"].items() if v is not None)
        reward = "unscored" if c["reward"] is None else f"{c['reward']:.2f}"
        text = c["text"] if len(c["text"]) < 200 else c["text"][:200] + "…"
        table.add_row(
            reward,
            parts,
            f"{c['advantage']:+.2f}",
            "yes" if c["keep"] else "no",
            f"{c['length']} {c['finish_reason']}",
            change,
            text,
        )
    console.print(table)


# --- the page ---------------------------------------------------------------------------------------------------------------

STYLE = """
:root{color-scheme:light dark;--line:#8884}body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid var(--line)}figure{margin:0}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1rem}svg{width:100%;height:auto}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:top}
.group td:last-child{font-family:ui-monospace,monospace;white-space:pre-wrap;width:50%}.out{opacity:.45}.bar{display:inline-block;height:.7em}
.part{white-space:nowrap;font-size:.85em}.note{opacity:.75;font-size:.9em}.prompt{background:#8881;padding:.6rem;border-radius:.4rem;white-space:pre-wrap}
pre{overflow:auto;background:#8881;padding:.6rem;border-radius:.4rem;font-size:.85em}summary{cursor:pointer}
"""


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """One page of all runs. Errors: NotFound for a folder without a run, BadInput for a run without a step."""
    data = [read_run(p) for p in runs]
    if not any(r.metrics for r in data):
        raise BadInput(f"{data[0].path} has not finished a step", "a run with at least one step", "RUN")
    sections = [
        f"<h1>{html.escape(' and '.join(r.name for r in data))}</h1>",
        "<ul>" + "".join(f"<li>{html.escape(s)}</li>" for r in data for s in summary(r)) + "</ul>",
        '<div class="grid">' + "".join(_figures(data)) + "</div>",
        *(f"<h2>One group of {html.escape(r.name)}, step {s}</h2>{group_picture(g)}" for r in data for s, g in _last_group(r)),
        *(_folded(r) for r in data),
    ]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(data[0].name)}</title><style>{STYLE}</style>'
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page + "\n".join(sections) + "</html>\n", encoding="utf-8")
    return out


def _figures(data: Sequence[RunData]) -> Iterable[str]:
    parts = sorted({k for r in data for row in r.metrics for k in row if k.startswith("reward/part/")})
    yield accuracy_plot(data)
    yield line_plot(data, "Reward of sampled answers", "reward", ["reward/mean"])
    yield scatter_plot(data)
    yield line_plot(data, "Length of sampled answers", "tokens", ["length/mean"])
    yield line_plot(data, "Groups that teach (rewards differ)", "share", ["groups/signal_frac"])
    yield line_plot(data, "Answers cut off by the limit", "share", ["length/truncated_frac"])
    if len(parts) > 1:
        yield line_plot(data, "Reward parts, raw", "reward", parts[:4])
    yield line_plot(data, "Entropy", "nats per token", ["entropy"])
    yield line_plot(data, "Gradient norm before clipping", "norm", ["grad_norm"])
    yield line_plot(data, "Supervised loss", "nats per token", ["loss/sft"])


def summary(run: RunData) -> list[str]:
    """What happened, in words."""
    lines = []
    last = run.metrics[-1] if run.metrics else {}
    for b in run.of("baseline"):
        lines.append(
            f"{run.name}: untouched, limit {b.get('limit_tokens')} tokens: accuracy {b['accuracy']:.3f} "
            f"[{b['accuracy_low']:.3f}, {b['accuracy_high']:.3f}], {b['length_mean']:.1f} tokens"
        )
    evaluated = [r for r in run.metrics if "eval/accuracy" in r]
    if evaluated:
        e = evaluated[-1]
        lines.append(
            f"{run.name}: after {e['step']} steps: accuracy {e['eval/accuracy']:.3f} [{e['eval/accuracy_low']:.3f}, "
            f"{e['eval/accuracy_high']:.3f}], {e['eval/length_mean']:.1f} tokens"
        )
    if "reward/mean" in last:
        first = run.metrics[0]
        lines.append(
            f"{run.name}: reward of sampled answers {first.get('reward/mean') or 0:.3f} in the first step, {last['reward/mean']:.3f} in the last"
        )
    lines += [f"{run.name}: {e['sentence']}" for e in run.of("guard") if "sentence" in e][:5]
    lines += [f"{run.name}: stopped: {e['reason']}" for e in run.of("stop")]
    return lines


def _last_group(run: RunData) -> list[tuple[int, dict[str, Any]]]:
    """The most telling group of the newest steps that have log-probs after the update."""
    files = sorted((run.path / "samples").glob("*.jsonl"), reverse=True)
    for file in files[:12]:
        group = max(_lines(file), key=_interest, default=None)
        if group is not None and group["completions"][0].get("logprobs_after") is not None and _interest(group)[0]:
            return [(int(file.stem), group)]
    groups = _lines(files[0]) if files else []
    return [(int(files[0].stem), max(groups, key=_interest))] if groups else []


def _folded(run: RunData) -> str:
    events = "".join(
        f"<tr><td>{html.escape(str(e.get('step')))}</td><td>{html.escape(e['kind'])}</td>"
        f"<td>{html.escape(str(e.get('sentence') or e.get('reason') or {k: v for k, v in e.items() if k not in ('at', 'step', 'kind')}))}</td></tr>"
        for e in run.events
    )
    return (
        f"<details><summary>{html.escape(run.name)}: health and events ({len(run.events)})</summary><table>{events}</table></details>"
        f"<details><summary>{html.escape(run.name)}: configuration</summary><pre>{html.escape(run.config)}</pre></details>"
    )
