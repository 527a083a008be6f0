"""What a run folder says, read for the report: metrics and events by step, the untouched model, groups of answers. Reading only.

Half-written last lines (a run that is going on, or was killed) are left out; missing files are empty.

Example:
    >>> run = read_run(Path("runs/word-problems-grpo"))
    >>> run.series("reward/mean")
    ([1, 2, 3], [0.05, 0.08, 0.11])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from policyloop.config import load_yaml
from policyloop.errors import NotFound
from policyloop.evaluation.evaluate import Evaluation
from policyloop.stats import Interval

Rows = list[dict[str, Any]]
SHAPING = "length and range terms"  # what the reward is beside the weighted sum of its parts


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a model did before training, at one token limit."""

    name: str
    limit: int
    accuracy: Interval
    length: float
    n: int

    @property
    def short(self) -> str:
        return f"{self.name}, {self.limit} tokens"

    @property
    def label(self) -> str:
        return f"{self.name}, at most {self.limit} tokens: {self.accuracy}, n = {self.n}"


@dataclass(frozen=True)
class RunData:
    """One run folder."""

    name: str
    path: Path
    metrics: Rows
    events: Rows
    config: Mapping[str, Any]
    config_text: str
    manifest: Mapping[str, Any]

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values where the key is there and a number."""
        rows = [r for r in self.metrics if isinstance(r.get(key), (int, float))]
        return [r["step"] for r in rows], [r[key] for r in rows]

    def of(self, kind: str) -> Rows:
        return [e for e in self.events if e.get("kind") == kind]

    def get(self, *path: str) -> Any:
        """A value of the configuration, None where there is none."""
        found: Any = self.config
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    @property
    def sampled(self) -> bool:
        """Whether the run trained on answers of its own; else lengths are those of demonstrations."""
        return any("reward/mean" in row for row in self.metrics)

    @property
    def steps(self) -> int:
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @cached_property
    def baselines(self) -> list[Baseline]:
        """The untouched model, one per token limit."""
        found = {}
        for e in self.of("baseline"):
            accuracy = Interval(e["accuracy"], e["accuracy_low"], e["accuracy_high"])
            limit = int(e.get("limit_tokens", 0))
            found[limit] = Baseline("untouched model", limit, accuracy, e["length_mean"], int(e["n"]))
        return [found[limit] for limit in sorted(found)]

    @property
    def start(self) -> Baseline | None:
        """The untouched model under the limit of the held-out curve: its step 0."""
        limit = self.get("evaluation", "max_new_tokens") or self.get("rollout", "max_new_tokens")
        same = [b for b in self.baselines if b.limit == limit]
        return (same or self.baselines or [None])[-1]

    @cached_property
    def held_out(self) -> Rows:
        """Every held-out evaluation, the untouched model as step 0: step, accuracy, accuracy_low, accuracy_high, length_mean, ..."""
        rows = [{k.removeprefix("eval/"): v for k, v in r.items() if k == "step" or k.startswith("eval/")} for r in self.metrics]
        rows = [r for r in rows if isinstance(r.get("accuracy"), (int, float))]
        if self.start is not None:
            a = self.start.accuracy
            first = {"accuracy": a.value, "accuracy_low": a.low, "accuracy_high": a.high, "length_mean": self.start.length}
            rows.insert(0, {"step": 0, **first, "n": self.start.n})
        return rows

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation after training began that decides "best": by evaluation.metric where it is there, else by accuracy."""
        rows = [r for r in self.held_out if r["step"] > 0]
        metric = self.get("evaluation", "metric") or "accuracy"
        key = metric if rows and all(isinstance(r.get(metric), (int, float)) for r in rows) else "accuracy"
        sign = -1 if self.get("evaluation", "better") == "lower" else 1
        return max(rows, key=lambda r: sign * r[key], default=None)

    @cached_property
    def weights(self) -> dict[str, float]:
        """Reward name -> weight, where rewards are simply summed; else nothing."""
        if (self.get("rewards", "combine") or "sum") != "sum":
            return {}
        found = {}
        for term in self.get("rewards", "terms") or ():
            for row, fields in term.items():
                fields = fields or {}
                name = fields.get("name") or str(fields.get("path", row)).rpartition(":")[2]
                found[name] = float(fields.get("weight", 1.0))
        return found


def read_run(path: Path) -> RunData:
    """Errors: NotFound when the folder holds no run."""
    if not (path / "manifest.json").exists():
        raise NotFound(f"{path} holds no run", "a folder written by `policyloop train`", "RUN")
    text = (path / "config.yaml").read_text(encoding="utf-8") if (path / "config.yaml").exists() else ""
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    name = path.resolve().name
    return RunData(name, path, lines(path / "metrics.jsonl"), lines(path / "events.jsonl"), load_yaml(text), text, manifest)


def lines(path: Path) -> Rows:
    rows: Rows = []
    for line in path.read_text(encoding="utf-8", errors="surrogatepass").split("\n") if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:  # the end of the file, or a half-written last line
            continue
    return [r for r in rows if isinstance(r, dict)]


def baseline_of(found: Evaluation) -> Baseline:
    """A saved evaluation as a dashed line."""
    length = found.metrics()["eval/length_mean"]
    return Baseline(found.version, found.conditions["decoding"]["max_new_tokens"], found.accuracy, length, len(found.judged))


# --- groups -----------------------------------------------------------------------------------------------------------------


def sampled_steps(path: Path) -> list[int]:
    return sorted(int(p.stem) for p in (path / "samples").glob("*.jsonl") if p.stem.isdigit())


def groups_of(path: Path, step: int | None = None) -> Rows:
    """The groups of one step (None: the newest that was kept)."""
    there = sampled_steps(path)
    step = there[-1] if step is None and there else step
    if step not in there:
        shown = f"{there[0]} to {there[-1]}" if there else "none (rollout.samples is 0, or no step is done)"
        raise NotFound(f"{path} has no samples of step {step}", f"one of the steps that were kept: {shown}", "--step")
    return lines(path / "samples" / f"{step:08d}.jsonl")


def pick_group(groups: Rows, prompt: str | None) -> dict[str, Any]:
    """By prompt id, by number, or the most telling one."""
    if prompt is None and groups:
        return max(groups, key=interest)
    found = [g for g in groups if prompt in (g["prompt_id"], g["uid"])]
    if found:
        return found[0]
    if prompt is not None and prompt.isdigit() and int(prompt) < len(groups):
        return groups[int(prompt)]
    raise NotFound(f"no prompt {prompt} in this step", f"0 to {len(groups) - 1}, or a prompt id", "--prompt")


def interest(group: Mapping[str, Any]) -> tuple[bool, bool, float]:
    """A group is worth a look when its rewards differ and the log-probs after the update are there; the wider the rewards the better."""
    rewards = [c["reward"] for c in group["completions"] if c["reward"] is not None]
    spread = max(rewards) - min(rewards) if rewards else 0.0
    return spread > 0, explained(group), spread


def explained(group: Mapping[str, Any]) -> bool:
    return any(c.get("logprobs_after") is not None for c in group["completions"])


def telling_groups(run: RunData, look_at: int = 40) -> Rows:
    """The most telling group of the newest steps, and of the first ones where that is another step."""
    steps = sampled_steps(run.path)
    newest = _most_telling(run, steps[::-1][:look_at])
    oldest = _most_telling(run, steps[:look_at])
    return [g for i, g in enumerate((newest, oldest)) if g is not None and (i == 0 or g["step"] != (newest or g)["step"])]


def _most_telling(run: RunData, steps: Sequence[int]) -> dict[str, Any] | None:
    """The first step, in the order given, that has a group with spread and log-probs; else the best there is."""
    best: dict[str, Any] | None = None
    for step in steps:
        group = max(groups_of(run.path, step), key=interest, default=None)
        if group is not None and (best is None or interest(group)[:2] > interest(best)[:2]):
            best = group
        if best is not None and all(interest(best)[:2]):
            break
    return best


def by_reward(group: Mapping[str, Any]) -> Rows:
    """Best first, of equals the shorter; unscored ones last."""
    return sorted(group["completions"], key=lambda c: (c["reward"] is None, -(c["reward"] or 0.0), c["length"]))


def contributions(completion: Mapping[str, Any], weights: Mapping[str, float]) -> dict[str, float]:
    """What every part adds to the reward: weight x raw value, and what is left (length and range terms). Raw values where rewards are not
    simply summed, or the answer is unscored. Parts that do not apply are left out."""
    raw = {name: value for name, value in completion["components"].items() if value is not None}
    if completion["reward"] is None or not set(raw) <= set(weights):
        return raw
    found = {name: weights[name] * value for name, value in raw.items()}
    rest = completion["reward"] - sum(found.values())
    return found | ({SHAPING: rest} if abs(rest) > 1e-6 else {})


def changes(completion: Mapping[str, Any]) -> list[float | None]:
    """Per token: log-probability after the update minus before."""
    after = completion.get("logprobs_after")
    if after is None:
        return [None] * len(completion["logprobs"])
    return [None if a is None or b is None else a - b for a, b in zip(after, completion["logprobs"], strict=False)]


def mean_change(completions: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean over tokens, None where nothing is known."""
    known = [d for c in completions for d in changes(c) if d is not None]
    return sum(known) / len(known) if known else None
