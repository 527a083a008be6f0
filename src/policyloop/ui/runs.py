"""Run folders as the console shows them: a table, curves with their baselines, steps, groups, the pass-rate map. Reading only.

Example:
    >>> summary("a", read_run(Path("runs/a")))["best"]
    {'step': 40, 'accuracy': 0.8, 'low': 0.73, 'high': 0.86, 'length': 20.0}
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from policyloop.errors import NotFound
from policyloop.evaluation.report_data import (
    RunData,
    by_reward,
    changes,
    contributions,
    groups_of,
    mean_change,
    read_run,
    sampled_steps,
)
from policyloop.ui import find_runs

Row = dict[str, Any]
CURVES = ("reward/mean", "length/mean", "groups/signal_frac", "entropy", "grad_norm", "length/truncated_frac")
LAST = ("guard", "evaluation", "save", "resume", "stop", "finished", "error", "best", "done")  # events worth a line
LOCKS = Path("/proc/locks")
LATELY_S = 600.0
MOST_POINTS = 400
MOST_STEPS = 60  # columns of the pass-rate map


def open_run(root: Path, name: str) -> RunData:
    """Errors: NotFound."""
    found = find_runs(root)
    if name not in found:
        raise NotFound(f"no run {name} in {root}", ", ".join(list(found)[:12]) or "no run is there", "the run")
    return read_run(found[name])


def table(root: Path) -> list[Row]:
    """Every run, the newest first."""
    rows = [summary(name, read_run(path)) for name, path in find_runs(root).items()]
    return sorted(rows, key=lambda r: r["changed"], reverse=True)


def summary(name: str, run: RunData) -> Row:
    best, start = run.best, run.start
    metrics = run.path / "metrics.jsonl"
    seconds = sum(v for row in run.metrics for k, v in row.items() if k in ("time/rollout_s", "time/update_s") and v)
    return {
        "run": name,
        "training": writing(run.path),
        "steps": run.steps,
        "of": run.get("training", "steps"),
        "type": run.get("rl_strategy", "type"),
        "task": run.get("data", "task"),
        "model": run.get("model", "base_model_path"),
        "reward": last(run.series("reward/mean")[1]),
        "length": last(run.series("length/mean")[1]),
        "best": None if best is None else point(best),
        "start": None
        if start is None
        else {"accuracy": start.accuracy.value, "low": start.accuracy.low, "high": start.accuracy.high},
        "guards": len(run.of("guard")),
        "seconds": seconds,
        "changed": (metrics if metrics.exists() else run.path).stat().st_mtime,
    }


def writing(path: Path) -> bool:
    """Whether a process trains here now: it holds the run's lock. Asked without taking the lock, which would turn a trainer away; where
    the system does not tell, a run that is not finished and was written to lately counts."""
    lock, metrics = path / ".lock", path / "metrics.jsonl"
    if not lock.exists():
        return False
    if LOCKS.exists():
        inode = f":{lock.stat().st_ino}"
        return any(
            " FLOCK " in held and held.split()[5].endswith(inode) for held in LOCKS.read_text().splitlines() if "->" not in held
        )
    return metrics.exists() and time.time() - metrics.stat().st_mtime < LATELY_S


def point(row: Mapping[str, Any]) -> Row:
    return {
        "step": row["step"],
        "accuracy": row["accuracy"],
        "low": row.get("accuracy_low"),
        "high": row.get("accuracy_high"),
        "length": row.get("length_mean"),
        "n": row.get("n"),
    }


def whole(name: str, run: RunData) -> Row:
    """One run: its curves, its baselines, its events, and the steps whose answers were kept."""
    parts = sorted({k for row in run.metrics for k in row if k.startswith("reward/part/")})
    return summary(name, run) | {
        "held_out": [point(row) for row in run.held_out],
        "baselines": [
            {
                "limit": b.limit,
                "accuracy": b.accuracy.value,
                "low": b.accuracy.low,
                "high": b.accuracy.high,
                "n": b.n,
                "length": b.length,
            }
            for b in run.baselines
        ],
        "curves": {key: curve(run, key) for key in (*CURVES, *parts) if run.series(key)[0]},
        "events": [e for e in run.events if e.get("kind") in LAST][-200:],
        "sampled": sampled_steps(run.path),
        "config": run.config_text,
        "lineage": {k: v for k, v in run.manifest.items() if isinstance(v, (str, int, float))},
    }


def curve(run: RunData, key: str) -> list[list[float]]:
    """Steps and values; of a long run every k-th point and the last."""
    steps, values = run.series(key)
    every = max(1, len(steps) // MOST_POINTS)
    return [[s, v] for i, (s, v) in enumerate(zip(steps, values, strict=True)) if i % every == 0 or i == len(steps) - 1]


# --- steps and groups -------------------------------------------------------------------------------------------------------


def step_of(run: RunData, step: int) -> Row:
    """Groups of a step, those that teach most first."""
    rows = [group_row(i, group) for i, group in enumerate(groups_of(run.path, step))]
    rows.sort(key=lambda r: (-r["signal"], r["n"]))
    return {"step": step, "sampled": sampled_steps(run.path), "groups": rows}


def group_row(n: int, group: Mapping[str, Any]) -> Row:
    """`signal`: the spread of the rewards; of equal answers nothing can be learned."""
    rewards = [c["reward"] for c in group["completions"] if c["reward"] is not None]
    change = mean_change(group["completions"])
    return {
        "n": n,
        "prompt_id": group["prompt_id"],
        "prompt": str(group["prompt"])[:300],
        "size": len(group["completions"]),
        "signal": statistics.pstdev(rewards) if rewards else 0.0,
        "reward": statistics.fmean(rewards) if rewards else None,
        "right": right_share(group["completions"]),
        "kept": sum(bool(c["keep"]) for c in group["completions"]),
        "length": statistics.fmean([c["length"] for c in group["completions"]]) if group["completions"] else None,
        "explained": change is not None,
    }


def group_of(run: RunData, step: int, n: int) -> Row:
    """One prompt and its answers, best first; per token what the update did to its log-probability."""
    groups = groups_of(run.path, step)
    if not 0 <= n < len(groups):
        raise NotFound(f"no group {n} in step {step}", f"0 to {len(groups) - 1}", "the group")
    group = groups[n]
    answers = [
        {
            **{
                k: c.get(k)
                for k in ("text", "reward", "components", "metric", "advantage", "keep", "length", "finish_reason", "version")
            },
            "parts": contributions(c, run.weights),
            "tokens": [[t, d] for t, d in zip(c.get("tokens") or (), changes(c), strict=False)],
            "change": mean_change([c]),
        }
        for c in by_reward(group)
    ]
    return {
        "step": step,
        "n": n,
        "of": len(groups),
        **{k: group.get(k) for k in ("uid", "prompt_id", "prompt", "target")},
        "answers": answers,
    }


def right_share(completions: Sequence[Mapping[str, Any]]) -> float | None:
    known = [c["metric"] for c in completions if c.get("metric") is not None]
    return sum(m > 0 for m in known) / len(known) if known else None


def pass_map(run: RunData) -> Row:
    """Prompts x steps: the share of right answers, wherever answers were kept. Prompts seen most often first, then the hardest."""
    steps = sampled_steps(run.path)
    every = -(-len(steps) // MOST_STEPS) or 1
    shown = steps[::-1][::every][::-1]  # the newest is among them
    cells: dict[str, dict[int, tuple[float, int]]] = {}
    texts: dict[str, str] = {}
    for step in shown:
        for n, group in enumerate(groups_of(run.path, step)):
            share = right_share(group["completions"])
            if share is not None:
                cells.setdefault(group["prompt_id"], {})[step] = (share, n)
                texts[group["prompt_id"]] = str(group["prompt"])[-120:]
    order = sorted(cells, key=lambda p: (-len(cells[p]), statistics.fmean(s for s, _ in cells[p].values()), p))
    rows = [{"prompt_id": p, "prompt": texts[p], "cells": [[s, *cells[p][s]] for s in sorted(cells[p])]} for p in order[:400]]
    return {"steps": shown, "left_out": len(steps) - len(shown), "prompts": rows, "more": max(0, len(order) - 400)}


def last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None
