"""A run in plain words and in one row of a table: what a reader should take away before looking at any curve.

Example:
    >>> summary(run)[0]
    'Held-out accuracy went from 0.125 [0.065, 0.228] to 0.609 [0.483, 0.723] in 12 steps; the intervals do not overlap.'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policyloop.evaluation.report_data import RunData


def summary(run: RunData) -> list[str]:
    """Sentences, the most important first."""
    return [*_accuracy(run), *_length(run), *_other_limits(run), *_sampled(run), *_ending(run), *_guards(run)]


def headline(run: RunData) -> str:
    """What kind of run this is."""
    parts = [
        f"{str(run.get('rl_strategy', 'type') or 'a run').upper()} on {run.get('data', 'task') or 'its task'}",
        f"from {run.get('model', 'base_model_path')}" if run.get("model", "base_model_path") else "",
        counted(run.steps, "step") + (f" of {run.get('training', 'steps')}" if run.get("training", "steps") else ""),
    ]
    return ", ".join(p for p in parts if p)


def counted(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _interval(row: Mapping[str, Any]) -> str:
    return f"{row['accuracy']:.3f} [{row['accuracy_low']:.3f}, {row['accuracy_high']:.3f}]"


def _accuracy(run: RunData) -> Iterator[str]:
    rows = run.held_out
    if not rows:
        yield "Nothing was measured on held-out prompts (evaluation.every is 0): the curves below are of training prompts."
        return
    first, last = rows[0], rows[-1]
    if len(rows) == 1:
        yield f"Held-out accuracy of step {first['step']}: {_interval(first)}."
        return
    apart = last["accuracy_low"] > first["accuracy_high"] or last["accuracy_high"] < first["accuracy_low"]
    sure = "the intervals do not overlap" if apart else "the intervals overlap: `policyloop compare` on the same items says more"
    yield f"Held-out accuracy went from {_interval(first)} to {_interval(last)} in {counted(last['step'], 'step')}; {sure}."
    best = run.best
    if best is not None and best["step"] != last["step"]:
        yield f"The best evaluation was that of step {best['step']}: {_interval(best)}."


def _length(run: RunData) -> Iterator[str]:
    rows = [r for r in run.held_out if r.get("length_mean")]
    if len(rows) > 1:
        a, b = rows[0]["length_mean"], rows[-1]["length_mean"]
        word = "longer" if b > a else "shorter"
        same = abs(b - a) < 0.02 * a
        yield (
            f"Answers stayed at {b:.1f} tokens."
            if same
            else f"Answers became {abs(b / a - 1):.0%} {word}: {a:.1f} to {b:.1f} tokens."
        )


def _other_limits(run: RunData) -> Iterator[str]:
    """Part of a gain under a tight limit may be answering in one short line."""
    wider = [b for b in run.baselines if run.start is not None and b.limit > run.start.limit]
    for other in wider:
        yield f"Allowed {other.limit} tokens, the untouched model reaches {other.accuracy}."
    cut = run.series("length/truncated_frac")[1] if run.sampled else []
    if cut and cut[0] > 0.2 and cut[-1] < cut[0] / 2:
        yield (
            f"{cut[0]:.0%} of the answers sampled in the first step were cut off by the limit, {cut[-1]:.0%} in the last: "
            "part of the gain is finishing in time." + ("" if wider else " Evaluate the untouched model with a larger limit too.")
        )


def _sampled(run: RunData) -> Iterator[str]:
    reward, signal = run.series("reward/mean")[1], run.series("groups/signal_frac")[1]
    if len(reward) > 1:
        span = max(1, len(reward) // 10)
        over = "" if span == 1 else f" (means over {span} steps)"
        yield f"Reward of sampled answers: {_mean(reward[:span]):.3f} at the start, {_mean(reward[-span:]):.3f} at the end{over}."
    if signal:
        yield f"On average {_mean(signal):.0%} of the groups had answers of different reward; only these teach."


def _ending(run: RunData) -> Iterator[str]:
    for stop in run.of("stop"):
        yield f"The run stopped early: {stop.get('reason')}."
    resumes = len(run.of("resume"))
    if resumes:
        yield f"It was interrupted and resumed {counted(resumes, 'time')}."
    planned = run.get("training", "steps")
    if planned and run.steps < planned and not run.of("stop"):
        yield f"It has done {run.steps} of {planned} steps."


def _guards(run: RunData) -> Iterator[str]:
    """Each guard once, with how often and when."""
    fired: dict[str, list[dict[str, Any]]] = {}
    for event in run.of("guard"):
        fired.setdefault(str(event.get("guard") or event.get("sentence")), []).append(event)
    for events in fired.values():
        steps = ", ".join(str(e["step"]) for e in events[:4]) + (" ..." if len(events) > 4 else "")
        what = events[0].get("sentence") or f"{events[0].get('guard')}: {events[0].get('action')}"
        yield f"Health, {counted(len(events), 'step').partition(' ')[2]} {steps}: {what}."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- at a glance ------------------------------------------------------------------------------------------------------------

COLUMNS = ("run", "before", "after", "best", "before", "after", "cut off", "groups that teach", "tokens sampled", "time")
Cell = tuple[str, str]  # what is said, and in small letters what belongs to it


def at_a_glance(run: RunData) -> tuple[str, list[Cell]]:
    """The run's name and the other cells of its row, in the order of COLUMNS."""
    rows, best = run.held_out, run.best
    first, last = (rows[0], rows[-1]) if rows else ({}, {})
    cut, signal = run.series("length/truncated_frac")[1] if run.sampled else [], run.series("groups/signal_frac")[1]
    seconds = sum(sum(run.series(key)[1]) for key in ("time/rollout_s", "time/reward_s", "time/update_s"))
    return run.name, [
        _accuracy_cell(first),
        _accuracy_cell(last),
        ("-", "") if best is None else (f"{best['accuracy']:.3f}", f"step {best['step']}"),
        _length_cell(first),
        _length_cell(last),
        (f"{cut[-1]:.0%}", f"from {cut[0]:.0%}") if cut else ("-", ""),
        (f"{_mean(signal):.0%}", "mean over steps") if signal else ("-", ""),
        (f"{sum(run.series('tokens/generated')[1]):,.0f}", counted(run.steps, "step")),
        (clock(seconds), "sampling and updates"),
    ]


def _accuracy_cell(row: Mapping[str, Any]) -> Cell:
    return (f"{row['accuracy']:.3f}", f"[{row['accuracy_low']:.3f}, {row['accuracy_high']:.3f}]") if row else ("-", "")


def _length_cell(row: Mapping[str, Any]) -> Cell:
    return (f"{row['length_mean']:.1f}", "tokens") if row.get("length_mean") is not None else ("-", "")


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes >= 60
        else f"{minutes} min {rest:02d} s"
        if minutes
        else f"{rest} s"
    )


def differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Configuration keys in which the runs differ, with every run's value."""
    flat = [_flat(run.config) for run in runs]
    keys = dict.fromkeys(key for tree in flat for key in tree)
    rows = [(key, [str(tree.get(key, "-")) for tree in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _flat(tree: Any, where: str = "") -> dict[str, Any]:
    """Dotted key -> value; a list is one value."""
    if not isinstance(tree, Mapping):
        return {where: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{where}.{key}" if where else str(key))
    return found
