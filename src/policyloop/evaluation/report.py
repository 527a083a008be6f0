"""The report: run folders in, one self-contained HTML page out; or one group explained in the terminal with the same numbers.

Example:
    >>> write_report([Path("runs/a"), Path("runs/b")], Path("runs/a/report.html"))     # policyloop report runs/a runs/b
    >>> explain(Path("runs/a"), step=10, prompt="0")                                   # policyloop report runs/a --step 10 --prompt 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policyloop.errors import BadInput
from policyloop.evaluation.evaluate import Evaluation
from policyloop.evaluation.report_data import (
    baseline_of,
    by_reward,
    changes,
    contributions,
    groups_of,
    mean_change,
    pick_group,
    read_run,
)

if TYPE_CHECKING:
    from rich.text import Text


def write_report(runs: Sequence[Path], out: Path, baselines: Sequence[Evaluation] = ()) -> Path:
    """One page of all runs, further untouched models as dashed lines. Errors: NotFound for a folder without a run, BadInput for runs
    without a step."""
    from policyloop.evaluation.report_html import page

    data = [read_run(p) for p in runs]
    if not any(r.metrics for r in data):
        raise BadInput(f"{data[0].path} has not finished a step", "a run with at least one step", "RUN")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = page(data, [baseline_of(b) for b in baselines])
    out.write_text(text, encoding="utf-8", errors="backslashreplace")
    return out


def explain(path: Path, step: int | None = None, prompt: str | None = None) -> None:
    """One group in the terminal: its numbers as a table, then every answer with its tokens coloured by what the update did to them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    run, console = read_run(path), Console(highlight=False, soft_wrap=True)
    group = pick_group(groups_of(path, step), prompt)
    answers = by_reward(group)
    console.print(Text.assemble((f"step {group['step']}, prompt {group['prompt_id']}", "bold"), f"\n{group['prompt']}"))
    console.print(Text(f"right answer: {group['target']}\n"))
    table = Table("#", "reward", "parts", "right", "advantage", "kept", "tokens", "change per token", box=None, pad_edge=False)
    for n, c in enumerate(answers, 1):
        table.add_row(str(n), *numbers(c, run.weights))
    console.print(table)
    for n, c in enumerate(answers, 1):
        console.print(Text.assemble((f"\n{n} ", "bold"), coloured(c)))
    console.print(Text(f"\n{biggest(answers)}", "dim"))


def numbers(c: Mapping[str, Any], weights: Mapping[str, float]) -> list[str]:
    """An answer's figures as the page shows them."""
    change = mean_change([c])
    return [
        "unscored" if c["reward"] is None else f"{c['reward']:.2f}",
        ", ".join(f"{name} {v:+.2f}" for name, v in contributions(c, weights).items() if v) or "-",
        "-" if c.get("metric") is None else "yes" if c["metric"] > 0 else "no",
        f"{c['advantage'] or 0.0:+.2f}",
        "yes" if c["keep"] else "no",
        f"{c['length']} {c['finish_reason']}",
        "-" if change is None else f"{change:+.3f} nats",
    ]


def coloured(c: Mapping[str, Any]) -> Text:
    """The answer's tokens, blue where they became more likely and orange where less; plain text where tokens are not kept."""
    from rich.text import Text

    tokens = c.get("tokens")
    if not tokens:
        return Text(c["text"])
    text = Text()
    for token, change in zip(tokens, changes(c), strict=False):
        strong = change is not None and abs(change) >= 0.05
        style = "" if not strong or change is None else "white on blue" if change > 0 else "black on dark_orange"
        text.append(token, style)
    return text


def biggest(answers: Sequence[Mapping[str, Any]], count: int = 5) -> str:
    """The tokens that the update moved most, in words (a pipe shows no colours)."""
    moved = [
        (abs(d), f"{token!r} {d:+.3f} (answer {n})")
        for n, c in enumerate(answers, 1)
        for token, d in zip(c.get("tokens") or [], changes(c), strict=False)
        if d is not None
    ]
    if not moved:
        return "log-probabilities after the update were not kept for this group (rollout.explain_every)"
    return "largest changes, nats: " + ", ".join(said for _, said in sorted(moved, reverse=True)[:count])
