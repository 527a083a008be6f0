"""What is wrong with a run, finished or going on: every guard read again over its metrics, and rules that need the whole run.

In: a run folder. Out: `Check`s, the most serious first, each with the keys to change and to what.

Example:
    >>> for check in diagnose(read_run(Path("runs/a"))):
    ...     print(check.line())
    fail  kl_alarm: approx_kl/k3 above 0.02 in 11 of 12 steps, last 3.2: one rollout's updates move the policy too far; fix: ...
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from policyloop.config import build
from policyloop.doctor import ORDER, Check, Verdict
from policyloop.errors import Problem
from policyloop.evaluation.report_data import RunData
from policyloop.monitor.guards import GUARDS
from policyloop.monitor.health import Watch
from policyloop.training import HealthSettings

SEVERITY: dict[str, Verdict] = {"alarm": "fail", "warn": "warn"}
KEY = re.compile(
    r"(raise|lower|lengthen|larger) (?:a )?((?:training|rollout|rl_strategy|rewards|model|data|evaluation)\.[a-z_.]*[a-z_])"
)


def diagnose(run: RunData) -> list[Check]:
    """The most serious first; within a verdict what began first, which is nearest to the cause, then what only the whole run shows."""
    found = [*guards(run), *_rules(run)]
    if not found:
        found = [Check("health", "ok", f"nothing to object to in {run.steps} steps")]
    return sorted(found, key=lambda c: ORDER[c.verdict])


# --- guards -----------------------------------------------------------------------------------------------------------------


def guards(run: RunData) -> list[Check]:
    """Each guard that fired, with how often and its last value, in the order in which they began."""
    watch, fired, seen, last = Watch(thresholds(run)), Counter[str](), Counter[str](), dict[str, float]()
    if run.of("baseline"):
        watch = Watch(
            thresholds(run),
            run.get("evaluation", "metric") or "accuracy",
            run.get("evaluation", "better") != "lower",
            run.of("baseline")[-1],
        )
    for row in run.metrics:
        row = {**row, **watch.derive(row)}
        watch.judge(row)
        for name, streak in watch.streak.items():
            if row.get(GUARDS[name].metric) is not None:
                seen[name] += 1
                if streak >= GUARDS[name].after:
                    fired[name] += 1
                    last[name] = float(row[GUARDS[name].metric])
    return [_guard(run, name, fired[name], seen[name], last[name], watch) for name in fired]


def _guard(run: RunData, name: str, fired: int, seen: int, last: float, watch: Watch) -> Check:
    guard, limit = GUARDS[name], getattr(watch.thresholds, name)
    often = (
        f"{guard.metric} {guard.beyond} {limit:g} in {fired} of {seen} {'evaluations' if guard.action == 'restore' else 'steps'}"
    )
    return Check(name, SEVERITY[guard.severity], f"{often}, last {last:.3g}: {guard.means}", to_what(guard.change, run))


def thresholds(run: RunData) -> HealthSettings:
    """The run's own limits; those of today where its config is of another version."""
    try:
        return build(HealthSettings, run.get("training", "health"), "training.health")
    except Problem:
        return HealthSettings()


def to_what(change: str, run: RunData) -> str:
    """The advice with a number behind each key that is to be raised or lowered: a third, or twice, what the run had."""

    def proposed(match: re.Match[str]) -> str:
        value = current(run, match[2])
        if value is None or value == 0:
            return match[0]
        new = value / 3 if match[1] == "lower" else value * 2
        new = max(1, round(new)) if isinstance(value, int) else float(f"{new:.2g}")
        return match[0] if new == value else f"{match[0]} ({value:g} -> {new:g})"

    return KEY.sub(proposed, change)


def current(run: RunData, key: str) -> int | float | None:
    """A number of the run's config; the learning rate that was derived where none was given. Table names of parts are passed over."""
    found: Any = run.config
    for name in key.split("."):
        while isinstance(found, Mapping) and name not in found and len(found) == 1:
            found = next(iter(found.values()))
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None and key == "training.lr":
        found = run.series("lr")[1][:1]
        found = found[0] if found else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


# --- rules that need the whole run -------------------------------------------------------------------------------------------


def _rules(run: RunData) -> Iterator[Check]:
    for name, rule in RULES.items():
        found = rule(run)
        if found is not None:
            verdict, what, change = found
            yield Check(name, verdict, what, to_what(change, run))


Found = tuple[Verdict, str, str] | None


def _ended(run: RunData) -> Found:
    """Stopped, or cut off without a word."""
    stops, planned = run.of("stop"), run.get("training", "steps")
    if stops:
        verdict: Verdict = "fail" if stops[-1].get("failed") else "note"
        return verdict, f"the run ended at step {run.steps}: {stops[-1]['reason']}", str(stops[-1].get("advice") or "")
    if planned and run.steps < planned:
        saved = run.of("save")
        where = f"a checkpoint of step {saved[-1]['step']} is there" if saved else "no checkpoint was written"
        return (
            "note",
            f"{run.steps} of {planned} steps, and no end: still running, or killed; {where}",
            "the same command with --resume auto",
        )
    return None


def _never_right(run: RunData) -> Found:
    right, cut = run.series("metric/mean")[1], run.series("length/truncated_frac")[1]
    if len(right) < 2 or max(right) > 0:
        return None
    sampled = int(sum(run.series("groups/count")[1]) * (run.get("rl_strategy", "group_size") or 1))
    why = (
        f"; {statistics.fmean(cut):.0%} were cut off: raise rollout.max_new_tokens" if cut and statistics.fmean(cut) > 0.5 else ""
    )
    change = "`policyloop reward try` shows whether right answers count as right; then data.answer_format, easier prompts or a supervised start"
    return "fail", f"not one of about {sampled} sampled answers was right", change + why


def _flat(run: RunData) -> Found:
    """Reward flat over the run: no signal, or updates that move nothing."""
    reward = run.series("reward/mean")[1]
    third = len(reward) // 3
    if third < 3:
        return None
    first, final = reward[:third], reward[-third:]
    noise = (statistics.variance(first) / third + statistics.variance(final) / third) ** 0.5
    rise = statistics.fmean(final) - statistics.fmean(first)
    if rise > 2 * noise and rise > 0.01:
        return None
    zero, moved = run.series("groups/zero_std_frac")[1], run.series("approx_kl/k3")[1]
    what = f"the reward is flat: {statistics.fmean(first):.3f} in the first third, {statistics.fmean(final):.3f} in the last"
    if zero and statistics.fmean(zero) > 0.5:
        change = "raise rl_strategy.group_size, rl_strategy.filter: {drop_constant: {}} (dynamic sampling), or prompts of another difficulty"
        return "warn", f"{what}; {statistics.fmean(zero):.0%} of the groups had equal rewards", change
    if moved and statistics.fmean(moved) < 1e-7:
        return "warn", f"{what}, and the policy hardly moves", "raise training.lr"
    return "note", what, "more training.steps, raise training.lr, or a reward with partial credit"


def _no_advantage(run: RunData) -> Found:
    zero = run.series("adv/frac_zero")[1]
    skipped, steps = sum(run.series("update/skipped")[1]), run.steps
    if steps and skipped > steps / 2:
        return (
            "fail",
            f"{skipped:.0f} updates were skipped in {steps} steps: no row had anything to teach",
            "rewards that differ within a group",
        )
    if zero and statistics.fmean(zero) > 0.9:
        return "warn", f"{statistics.fmean(zero):.0%} of the trained tokens had advantage 0", "rewards that differ within a group"
    return None


def _still_long(run: RunData) -> Found:
    """A filter for short answers, and they did not become shorter."""
    top = (run.get("rl_strategy", "filter") or {}).get("top_k") if isinstance(run.get("rl_strategy", "filter"), Mapping) else None
    length = run.series("length/mean")[1]
    if not isinstance(top, Mapping) or len(length) < 6 or statistics.fmean(length[-3:]) < 0.95 * statistics.fmean(length[:3]):
        return None
    kept, gone = run.series("gfpo/length_retained")[1], run.series("gfpo/length_rejected")[1]
    sizes = f"it kept {top.get('k')} of {run.get('rl_strategy', 'group_size')} by {top.get('metric')}"
    means = f", {statistics.fmean(kept):.1f} tokens against {statistics.fmean(gone):.1f} of the rejected" if kept and gone else ""
    change = "a smaller rl_strategy.filter.top_k.k or metric: shortest; raise rewards.token_efficiency.weight"
    return "warn", f"answers did not become shorter under the filter: {sizes}{means}", change


def _memory(run: RunData) -> Found:
    budget = run.series("micro_batch_tokens")[1]
    if not budget or budget[-1] >= budget[0]:
        return None
    change = "training.micro_batch_tokens: that number from the start, model.gradient_checkpointing: true, training.precision: bf16, lower rl_strategy.group_size"
    return "note", f"memory ran out and the forward was halved from {budget[0]:.0f} to {budget[-1]:.0f} tokens", change


def _best_was_earlier(run: RunData) -> Found:
    rows, best = run.held_out, run.best
    if (
        best is None
        or best["step"] == rows[-1]["step"]
        or "accuracy_low" not in best
        or rows[-1]["accuracy"] >= best["accuracy_low"]
    ):
        return None
    what = f"held-out accuracy was {best['accuracy']:.3f} at step {best['step']} and is {rows[-1]['accuracy']:.3f} at step {rows[-1]['step']}"
    return "warn", what, f"use run://{run.name}@best; training.early_stop: 2 ends a run there"


def _failed_rewards(run: RunData) -> Found:
    for key in sorted({k for row in run.metrics for k in row if k.startswith(("reward/failed/", "reward/late/"))}):
        count = sum(run.series(key)[1])
        if count:
            return (
                "warn",
                f"{key} counts {count:.0f} completions that got no reward",
                "the first failure is in the terminal's lines; timeout_s of that reward",
            )
    return None


def _time(run: RunData) -> Found:
    parts = {name: sum(run.series(f"time/{name}_s")[1]) for name in ("rollout", "reward", "update", "data_wait")}
    total = sum(parts.values())
    if not total:
        return None
    name = max(parts, key=lambda part: parts[part])
    fixes = {"reward": "a faster reward: fewer symbolic checks, or a service", "data_wait": "data on a local disk"}
    if name not in fixes or parts[name] < 0.5 * total:
        return None
    return "note", f"{parts[name] / total:.0%} of the time went into {name.replace('_', ' ')}", fixes[name]


RULES: dict[str, Callable[[RunData], Found]] = {
    "never_right": _never_right,
    "no_advantage": _no_advantage,
    "ended": _ended,
    "best_was_earlier": _best_was_earlier,
    "flat_reward": _flat,
    "failed_rewards": _failed_rewards,
    "still_long": _still_long,
    "memory": _memory,
    "time": _time,
}
