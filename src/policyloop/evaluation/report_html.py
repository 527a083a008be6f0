"""The report's page: run data in, one HTML string out that needs nothing else (no script, no network), light or dark as the reader's screen.

Order: words, one row per run, held-out accuracy with intervals, curves, the group picture, what differs between runs, health and events,
numbers and configuration folded away.

Example:
    >>> Path("report.html").write_text(page([read_run(Path("runs/a"))]))
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from policyloop.evaluation import report_data as data
from policyloop.evaluation.report_data import Baseline, RunData
from policyloop.evaluation.report_plots import RUNS, SMOOTH_FROM, Level, Line, figure
from policyloop.evaluation.report_words import COLUMNS, at_a_glance, differences, headline, summary

esc = html.escape
STEPS = 5  # shades of a token's change, each way
SHOWN_TOKENS = 500  # of one answer; longer ones lose their middle


def page(runs: Sequence[RunData], baselines: Sequence[Baseline] = ()) -> str:
    """The whole page. `baselines`: further dashed lines beside the runs' own."""
    title = " and ".join(run.name for run in runs)
    body = [
        f"<h1>{esc(title)}</h1>",
        *(words(run, i) for i, run in enumerate(runs)),
        glance(runs),
        legend(runs),
        '<div class="grid">' + "".join(figures(runs, baselines)) + "</div>",
        *(group for i, run in enumerate(runs) for group in group_pictures(run, i)),
        differing(runs),
        "<h2>Behind the curves</h2>",
        *(folded(run) for run in runs),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{esc(title)}</title><style>{style()}</style></head><body>" + "\n".join(b for b in body if b) + "</body></html>\n"
    )


def chip(i: int) -> str:
    """The colour and shape of run number i, as in the plots."""
    return f'<span class="chip" style="color:var(--run{i % RUNS})">{"●■▲◆▼✚"[i % RUNS]}</span>'


def words(run: RunData, i: int) -> str:
    said = "".join(f"<li>{esc(sentence)}</li>" for sentence in summary(run))
    return (
        f'<section class="card"><h3>{chip(i)} {esc(run.name)} <small>{esc(headline(run))}</small></h3><ul>{said}</ul></section>'
    )


def legend(runs: Sequence[RunData]) -> str:
    """Which line is which run; stays in sight while the curves scroll by."""
    names = " ".join(f"<span>{chip(i)} {esc(run.name)}</span>" for i, run in enumerate(runs))
    note = (
        "<p class='note'>Thin lines: every step. Thick lines: running mean.</p>"
        if any(r.steps >= SMOOTH_FROM for r in runs)
        else ""
    )
    return note + (f'<div class="runs">{names}</div>' if len(runs) > 1 else "")


def glance(runs: Sequence[RunData]) -> str:
    head = "".join(f"<th>{esc(c)}</th>" for c in COLUMNS)
    over = '<tr><th></th><th colspan="3">held-out accuracy</th><th colspan="2">held-out length</th><th colspan="4">training</th></tr>'
    rows = "".join(
        f"<tr><td>{chip(i)} {esc(name)}</td>"
        + "".join(f"<td>{esc(v)}<small>{esc(more)}</small></td>" for v, more in values)
        + "</tr>"
        for i, (name, values) in enumerate(at_a_glance(run) for run in runs)
    )
    return f'<div class="scroll"><table class="numbers">{over}<tr>{head}</tr>{rows}</table></div>'


# --- curves -----------------------------------------------------------------------------------------------------------------


def figures(runs: Sequence[RunData], baselines: Sequence[Baseline]) -> Iterator[str]:
    """Every curve for which there is data."""
    yield accuracy(runs, baselines)
    yield steps(runs, "Reward", "mean of sampled answers", "reward", "reward/mean")
    yield length_against_accuracy(runs)
    yield steps(runs, "Length", "sampled answers, mean (dotted: 95th percentile)", "tokens", "length/mean", "length/p95")
    yield steps(
        runs, "Groups that teach", "share of groups whose answers differ in reward", "share", "groups/signal_frac", share=True
    )
    yield steps(
        runs, "Cut off", "share of sampled answers that hit the token limit", "share", "length/truncated_frac", share=True
    )
    parts = sorted({k for run in runs for row in run.metrics for k in row if k.startswith("reward/part/")})
    for key in parts if len(parts) > 1 else ():
        yield steps(runs, f"Reward part: {key.removeprefix('reward/part/')}", "raw mean, before its weight", "reward", key)
    yield steps(runs, "Entropy", "how undecided the policy is between tokens", "nats per token", "entropy")
    yield steps(runs, "Gradient norm", "before clipping", "norm", "grad_norm")
    yield steps(runs, "KL to the reference", "k3 estimate", "nats per token", "kl_ref/k3")
    yield steps(runs, "Supervised loss", "of the demonstrations' tokens", "nats per token", "loss/sft")
    yield steps(runs, "Pairs in order", "chosen before rejected, in training", "share", "rewards/accuracy", share=True)
    yield steps(runs, "Margin of pairs", "reward of the chosen side minus that of the rejected one", "reward", "rewards/margin")


def accuracy(runs: Sequence[RunData], baselines: Sequence[Baseline]) -> str:
    """The main curve: held out, with its 95 % band; dashed: untouched models."""
    lines = []
    for i, run in enumerate(runs):
        columns = ([r[k] for r in run.held_out] for k in ("step", "accuracy", "accuracy_low", "accuracy_high"))
        lines.append(Line(run.name, i, *columns, points=True))
    untouched = {b.label: b for b in (*(b for run in runs for b in run.baselines), *baselines)}
    levels = [Level(b.short, b.accuracy.value) for b in untouched.values()]
    drawn = figure("Held-out accuracy", "with its 95 % interval", "accuracy", lines, levels=levels, share=True, wide=True)
    dashed = "".join(f"<li><span class='dash'></span>{esc(label)}</li>" for label in untouched)
    return drawn.replace("</figure>", f'<ul class="legend">{dashed}</ul></figure>') if dashed else drawn


def length_against_accuracy(runs: Sequence[RunData]) -> str:
    """Where training went: shorter is left, better is up; the last evaluation has the largest mark."""
    lines = []
    for i, run in enumerate(runs):
        rows = [r for r in run.held_out if isinstance(r.get("length_mean"), (int, float))]
        lines.append(Line(run.name, i, [r["length_mean"] for r in rows], [r["accuracy"] for r in rows], arrows=True))
    note = "held out; the last mark is the largest"
    return figure("Accuracy against length", note, "accuracy", lines, xlabel="tokens per answer", share=True)


def steps(runs: Sequence[RunData], title: str, note: str, unit: str, *keys: str, share: bool = False) -> str:
    """One line per run; further keys dotted, where there is one run only."""
    lines = []
    for i, run in enumerate(runs):
        for n, key in enumerate(keys if len(runs) == 1 else keys[:1]):
            x, y = ([], []) if key.startswith("length/") and not run.sampled else run.series(key)
            lines.append(Line(run.name if n == 0 else key, i, x, y, dashes="-" if n == 0 else ":"))
    shown = note if len(runs) == 1 or len(keys) == 1 else note.partition(" (")[0]
    return figure(title, shown, unit, lines, share=share)


# --- one group --------------------------------------------------------------------------------------------------------------


def group_pictures(run: RunData, i: int) -> Iterator[str]:
    """The newest telling group in full, an early one folded."""
    for n, group in enumerate(data.telling_groups(run)):
        drawn = group_picture(group, run.weights)
        where = f"{chip(i)} {esc(run.name)}, step {group['step']}"
        if n == 0:
            yield f"<h2>One group of answers: {where}</h2>{drawn}"
        else:
            yield f"<details><summary>An early group: {where}</summary>{drawn}</details>"


def group_picture(group: Mapping[str, Any], weights: Mapping[str, float]) -> str:
    """The prompt, its answers by reward, what each part of the reward gave, the advantage, and what the update did to every token."""
    answers = data.by_reward(group)
    gifts = [data.contributions(c, weights) for c in answers]
    names = list(dict.fromkeys(name for gift in gifts for name in gift))
    far = max([abs(c["advantage"] or 0.0) for c in answers] + [1e-9])
    shade, stacks = shade_of(answers), stacked(gifts, names)
    rows = "".join(_answer(n, *row, far, shade) for n, row in enumerate(zip(answers, gifts, stacks, strict=True), 1))
    target = "" if group["target"] is None else f"<dt>Right answer</dt><dd>{esc(str(group['target']))}</dd>"
    return (
        f'<dl class="prompt"><dt>Prompt</dt><dd>{esc(group["prompt"])}</dd>{target}</dl>'
        f'<p class="note">{_parts_legend(names)}{_token_legend(shade, group)}</p>'
        '<div class="scroll"><table class="group"><tr><th></th><th>reward</th><th>advantage</th><th>tokens</th><th>answer</th></tr>'
        f"{rows}</table></div>"
    )


def _answer(n: int, c: Mapping[str, Any], gift: Mapping[str, float], stack: str, far: float, shade: float) -> str:
    value = "unscored" if c["reward"] is None else f"{c['reward']:.2f}"
    parts = "" if len(gift) < 2 else "<small>" + esc(", ".join(f"{name} {v:+.2f}" for name, v in gift.items() if v)) + "</small>"
    right = "" if c.get("metric") is None else f'<small class="mark">{"right" if c["metric"] > 0 else "wrong"}</small>'
    left_out = "" if c["keep"] else "<small>left out by the filter</small>"
    change = data.mean_change([c])
    moved = "" if change is None else f"<small>{change:+.3f} nats a token</small>"
    return (
        f"<tr{'' if c['keep'] else ' class=out'}><td>{n}</td>"
        f"<td>{stack}<b>{value}</b>{right}{parts}{left_out}</td>"
        f"<td>{_balance(c['advantage'] or 0.0, far)}{c['advantage'] or 0.0:+.2f}{moved}</td>"
        f"<td>{c['length']}<small>{esc(c['finish_reason'])}</small></td><td>{_tokens(c, shade)}</td></tr>"
    )


def stacked(gifts: Sequence[Mapping[str, float]], names: Sequence[str], width: float = 120.0) -> list[str]:
    """Parts of the reward end to end, losses left of the zero line and gains right of it; one scale and one zero for all answers."""
    losses = max([-sum(v for v in gift.values() if v < 0) for gift in gifts], default=0.0)
    gains = max([sum(v for v in gift.values() if v > 0) for gift in gifts], default=0.0)
    unit = (width - 4) / max(losses + gains, 1e-9)
    return [_stack(gift, names, 2 + losses * unit, unit) for gift in gifts]


def _stack(gift: Mapping[str, float], names: Sequence[str], zero: float, unit: float) -> str:
    right = left = zero
    pieces = []
    for name, v in gift.items():
        wide = abs(v) * unit
        left -= wide if v < 0 else 0.0
        x, right = (left, right) if v < 0 else (right, right + wide)
        fill = f"var(--part{names.index(name) % len(PARTS)})"
        pieces.append(
            f'<rect x="{x:.1f}" y="2" width="{wide:.1f}" height="10" fill="{fill}"><title>{esc(name)} {v:+.3f}</title></rect>'
        )
    zero_line = f'<path d="M{zero:.1f} 0V14" stroke="var(--muted)"/>'
    return f'<svg class="bar" viewBox="0 0 120 14">{"".join(pieces)}{zero_line}</svg>'


def _balance(advantage: float, far: float) -> str:
    """The advantage left or right of zero."""
    width = abs(advantage) / far * 38
    x, fill = (40.0, "var(--up)") if advantage >= 0 else (40 - width, "var(--down)")
    return (
        f'<svg class="bar small" viewBox="0 0 80 14"><rect x="{x:.1f}" y="2" width="{width:.1f}" height="10" fill="{fill}"/>'
        '<path d="M40 0V14" stroke="var(--muted)"/></svg>'
    )


def shade_of(answers: Sequence[Mapping[str, Any]]) -> float:
    """The change in nats that gets the darkest shade: the 95th percentile of the group, so that one token does not pale all others."""
    known = sorted(abs(d) for c in answers for d in data.changes(c) if d is not None)
    return max(0.01, known[min(len(known) - 1, int(0.95 * len(known)))]) if known else 0.01


def _tokens(c: Mapping[str, Any], shade: float) -> str:
    """The answer, each token with the shade of its change; without token texts, the plain text."""
    texts = c.get("tokens") or []
    if not texts:
        return f'<div class="text">{esc(c["text"])}</div>'
    pieces = [_token(*t, shade) for t in zip(texts, data.changes(c), c["logprobs"], strict=False)]
    if len(pieces) > SHOWN_TOKENS:
        gone = len(pieces) - SHOWN_TOKENS
        keep = SHOWN_TOKENS * 3 // 4
        pieces = [*pieces[:keep], f"<em> … {gone} tokens … </em>", *pieces[keep + gone :]]
    return f'<div class="text">{"".join(pieces)}</div>'


def _token(text: str, change: float | None, before: float | None, shade: float) -> str:
    shown = esc(text).replace("\n", "↵\n")
    if change is None or before is None:
        return f"<span>{shown}</span>"
    level = min(STEPS, round(abs(change) / shade * STEPS))
    kind = f' class="{"u" if change > 0 else "d"}{level}"' if level else ""
    return f'<span{kind} title="{change:+.3f} nats, log-prob {before:.3f} to {before + change:.3f}">{shown}</span>'


def _parts_legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return f"Reward: {esc(names[0])}. " if names else ""
    keys = " ".join(
        f'<span class="key" style="background:var(--part{i % len(PARTS)})"></span>{esc(n)}' for i, n in enumerate(names)
    )
    return f"Reward, stacked: {keys}. "


def _token_legend(shade: float, group: Mapping[str, Any]) -> str:
    if not data.explained(group):
        return "Log-probabilities after the update were not kept for this group (rollout.explain_every)."
    down = "".join(f'<span class="d{k}">&nbsp;&nbsp;</span>' for k in range(STEPS, 0, -1))
    up = "".join(f'<span class="u{k}">&nbsp;&nbsp;</span>' for k in range(1, STEPS + 1))
    scale = f"Tokens, by what this update did to them: less likely {down} {up} more likely (darkest: {shade:.2g} nats and above)."
    groups = {True: "higher", False: "lower"}
    moved = []
    for better, word in groups.items():
        side = [c for c in group["completions"] if c["keep"] and c["advantage"] and (c["advantage"] > 0) == better]
        change = data.mean_change(side)
        if change is not None:
            moved.append(f"answers of {word} reward {change:+.3f}")
    return scale + (f" Mean change per token: {', '.join(moved)} nats." if moved else "")


# --- folded -----------------------------------------------------------------------------------------------------------------


def differing(runs: Sequence[RunData]) -> str:
    """What is configured differently, where there are several runs."""
    rows = differences(runs) if len(runs) > 1 else []
    if len(runs) < 2:
        return ""
    if not rows:
        return "<h2>What differs between the runs</h2><p>Nothing in their configuration.</p>"
    head = "".join(f"<th>{chip(i)} {esc(run.name)}</th>" for i, run in enumerate(runs))
    body = "".join(f"<tr><td><code>{esc(k)}</code></td>" + "".join(f"<td>{esc(v)}</td>" for v in vs) + "</tr>" for k, vs in rows)
    return f'<h2>What differs between the runs</h2><div class="scroll"><table><tr><th></th>{head}</tr>{body}</table></div>'


def folded(run: RunData) -> str:
    """Health and events, held-out numbers, plan and configuration of one run."""
    events = "".join(_event(e) for e in run.events)
    keys = list(dict.fromkeys(k for row in run.held_out for k in row))
    head = "".join(f"<th>{esc(k.replace('_', ' '))}</th>" for k in keys)
    numbers = "".join("<tr>" + "".join(f"<td>{esc(_number(row.get(k)))}</td>" for k in keys) + "</tr>" for row in run.held_out)
    plan = "\n".join(line for e in run.of("plan")[-1:] for line in e.get("lines", ()))
    code = ", ".join(f"{k} {v}" for k, v in (run.manifest.get("code") or {}).items())
    about = f"{plan}\n\n" if plan else ""
    name = esc(run.name)
    return "".join(
        (
            _fold(f"{name}: health and events ({len(run.events)})", f"<table>{events}</table>"),
            _fold(f"{name}: held-out numbers ({len(run.held_out)})", f'<table class="numbers"><tr>{head}</tr>{numbers}</table>'),
            _fold(f"{name}: plan, code and configuration", f"<pre>{esc(about)}{esc(code)}\n\n{esc(run.config_text)}</pre>"),
        )
    )


def _fold(title: str, inside: str) -> str:
    return f'<details><summary>{title}</summary><div class="scroll">{inside}</div></details>'


def _event(e: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in e.items() if k not in ("at", "step", "kind")}
    said = e.get("sentence") or e.get("reason") or e.get("text") or "; ".join(e.get("lines", ()))
    said = said or ", ".join(f"{k.removeprefix('eval/')} {_number(v)}" for k, v in rest.items() if v is not None)
    advice = f" <small>{esc(str(e['advice']))}</small>" if e.get("advice") and str(e["advice"]) not in str(said) else ""
    return f"<tr><td>{esc(str(e.get('step')))}</td><td>{esc(str(e.get('kind')))}</td><td>{esc(str(said))}{advice}</td></tr>"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3f}"


# --- style ------------------------------------------------------------------------------------------------------------------

# Okabe and Ito's colours, told apart without red and green; darker on white and lighter on black where a line would be too faint
LIGHT: Iterable[str] = ("#0072b2", "#d55e00", "#008f68", "#b35b91", "#8a6d00", "#2f8fc9")
DARK: Iterable[str] = ("#5cb3f0", "#ff8f4f", "#3ccf9f", "#e79cc8", "#e6c34a", "#9ad4ff")
PARTS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#999999")


def style() -> str:
    """All of the page's CSS; colours are variables, so that the plots follow."""

    def colours(ground: str, card: str, ink: str, muted: str, rule: str, runs: Iterable[str], up: str, down: str) -> str:
        run = "".join(f"--run{i}:{c};" for i, c in enumerate(runs))
        return (
            f"--ground:{ground};--card:{card};--ink:{ink};--muted:{muted};--rule:{rule};--up:rgb({up});--down:rgb({down});"
            f"--up-rgb:{up};--down-rgb:{down};{run}"
        )

    light = colours("#fff", "#f6f8fa", "#1c2128", "#59636e", "#d8dee4", LIGHT, "0,114,178", "213,94,0")
    dark = colours("#0f1318", "#181d24", "#e4e9ef", "#9aa5b1", "#333b45", DARK, "92,179,240", "255,143,79")
    parts = "".join(f"--part{i}:{c};" for i, c in enumerate(PARTS))
    shades = "".join(
        f".u{k}{{background:rgba(var(--up-rgb),{0.11 * k:.2f})}}"
        f".d{k}{{background:rgba(var(--down-rgb),{0.11 * k:.2f});border-bottom:1px dotted var(--down)}}"
        for k in range(1, STEPS + 1)
    )
    return f":root{{color-scheme:light dark;{parts}{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{CSS}{shades}"


CSS = """
body{font:15px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:1160px;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.5rem;margin:0 0 1rem}h2{font-size:1.15rem;margin:2.4rem 0 .8rem;padding-bottom:.3rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:0}h3 small{font-weight:400;color:var(--muted);margin-left:.5rem}small{color:var(--muted);font-size:.82em}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:.8rem 1.1rem;margin:.8rem 0}
.card ul{margin:.4rem 0 0;padding-left:1.2rem}.chip{font-size:.9em}.scroll{overflow-x:auto}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:1.6rem 2rem;margin-top:1.6rem}
figure{margin:0;min-width:0}figure.wide{grid-column:1/-1}figure svg{width:100%;height:auto;display:block}
figcaption{margin-bottom:.3rem}figcaption span{color:var(--muted);font-size:.88em;margin-left:.3rem}
.legend{list-style:none;margin:.2rem 0 0;padding:0 0 0 3rem;color:var(--muted);font-size:.88em}
.dash{display:inline-block;width:1.8rem;border-top:2px dashed var(--muted);vertical-align:middle;margin-right:.4rem}
table{border-collapse:collapse;width:100%;font-size:.92em}td,th{border-bottom:1px solid var(--rule);padding:.35rem .6rem;text-align:left;vertical-align:top}
th{color:var(--muted);font-weight:500;vertical-align:bottom}.numbers td{font-variant-numeric:tabular-nums;white-space:nowrap}.numbers small{display:block}
.runs{position:sticky;top:0;z-index:1;background:var(--ground);border-bottom:1px solid var(--rule);padding:.5rem 0;margin-top:1.4rem;display:flex;flex-wrap:wrap;gap:.2rem 1.4rem}
.prompt{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:.7rem 1rem;margin:0 0 .6rem;display:grid;
grid-template-columns:max-content 1fr;gap:.2rem 1rem}.prompt dt{color:var(--muted)}.prompt dd{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
.note{color:var(--muted);font-size:.88em;margin:.4rem 0}.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .3em 0 .5em}
.group td{font-variant-numeric:tabular-nums}.group td small{display:block}.group td:nth-child(2){min-width:8.5rem}.group td:nth-child(3){min-width:6.5rem}
.group td:last-child{width:60%}.group .mark{display:inline-block;margin-left:.5em}.out{background:var(--card)}.out .text{opacity:.75}
.out td:first-child{border-left:3px solid var(--muted)}.bar{display:block;width:120px;height:14px}.bar.small{width:80px}
.text{font-family:ui-monospace,monospace;font-size:.95em;white-space:pre-wrap;overflow-wrap:anywhere}.text span{border-radius:2px}
details{margin:.5rem 0}summary{cursor:pointer}details table,details pre{margin-top:.6rem}
pre{overflow:auto;background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:.8rem;font-size:.85em}
@media print{details{break-inside:avoid}figure{break-inside:avoid}}
"""
