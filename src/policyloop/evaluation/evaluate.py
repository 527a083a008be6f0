"""Evaluate: prompts through an engine, verdicts from the task, figures with intervals, everything recorded that decides them.

Example:
    >>> result = evaluate(engine, renderer, task, prompts, SamplingParams(max_new_tokens=64, temperature=0), version="run#20")
    >>> result.sentence()
    'accuracy 0.790 [0.698, 0.860], length 15.2 tokens, 0 % cut off (n = 96)'
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from policyloop.engine import Engine, Request
from policyloop.errors import BadInput
from policyloop.stats import Interval, correlation, pass_at_k, quantile, share
from policyloop.tasks import Task
from policyloop.types import Prompt, SamplingParams


class EvaluationRenderer(Protocol):
    """What evaluation needs of `models.template.Renderer`."""

    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Item:
    """One answer to one prompt."""

    prompt_id: str
    cluster: str
    sample: int
    correct: bool | None
    length: int
    truncated: bool
    text: str
    target: str | None = None
    prompt: str = ""
    level: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All items and what they were made under. Two evaluations compare only where `conditions` agree."""

    version: str
    task: str
    conditions: Mapping[str, Any]
    items: tuple[Item, ...] = field(default_factory=tuple)

    @property
    def judged(self) -> list[Item]:
        return [i for i in self.items if i.correct is not None]

    @property
    def accuracy(self) -> Interval:
        """Share of right answers; the interval knows that prompts with one key, and answers to one prompt, are not independent."""
        items = self.judged
        return share([float(bool(i.correct)) for i in items], [i.cluster for i in items])

    def pass_at(self, k: int) -> float:
        """Mean over prompts of the unbiased estimate."""
        n, right = Counter(i.prompt_id for i in self.judged), Counter(i.prompt_id for i in self.judged if i.correct)
        return statistics.fmean(pass_at_k(n[p], right[p], k) for p in n) if n else math.nan

    def at_limit(self, tokens: int) -> Evaluation:
        """What a tighter token limit would have given: greedy answers do not depend on it, so a longer one is cut off, and wrong."""
        cut = tuple(
            replace(i, length=tokens, truncated=True, correct=None if i.correct is None else False) if i.length > tokens else i
            for i in self.items
        )
        decoding = {**self.conditions["decoding"], "max_new_tokens": tokens}
        return replace(self, items=cut, conditions={**self.conditions, "decoding": decoding})

    def metrics(self) -> dict[str, float]:
        """Flat figures, `eval/...`."""
        lengths = [float(i.length) for i in self.items]
        right, acc = [i for i in self.judged if i.correct], self.accuracy
        found = {
            "accuracy": acc.value,
            "accuracy_low": acc.low,
            "accuracy_high": acc.high,
            "n": float(len(self.judged)),
            "clusters": float(len({i.cluster for i in self.judged})),
            "unscored": float(len(self.items) - len(self.judged)),
            "length_mean": statistics.fmean(lengths) if lengths else math.nan,
            "length_p50": quantile(lengths, 0.5),
            "length_p95": quantile(lengths, 0.95),
            "truncated_frac": statistics.fmean(i.truncated for i in self.items) if self.items else math.nan,
            "tokens_per_correct": sum(lengths) / len(right) if right else math.inf,
        }
        samples = 1 + max((i.sample for i in self.items), default=0)
        if samples > 1:
            found[f"pass_at_{samples}"] = self.pass_at(samples)
        return {f"eval/{k}": v for k, v in found.items()}

    def length_by_level(self) -> dict[str, float]:
        """Rank correlation of length and correctness inside each difficulty (S1-54): pooled, difficulty would confound it."""
        levels = sorted({i.level for i in self.judged})
        of = {level: [i for i in self.judged if i.level == level] for level in levels}
        return {
            level or "all": correlation([i.length for i in x], [float(bool(i.correct)) for i in x]) for level, x in of.items()
        }

    def sentence(self) -> str:
        m = self.metrics()
        cut = f"{100 * m['eval/truncated_frac']:.0f} % cut off" if self.items else "nothing answered"
        extra = "".join(f", pass@{k.rpartition('_')[2]} {v:.3f}" for k, v in m.items() if "pass_at" in k)
        unscored = f", {m['eval/unscored']:.0f} unscored" if m["eval/unscored"] else ""
        return (
            f"accuracy {self.accuracy}{extra}, length {m['eval/length_mean']:.1f} tokens, {cut} (n = {m['eval/n']:.0f}{unscored})"
        )

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Evaluation:
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            return Evaluation(tree["version"], tree["task"], tree["conditions"], tuple(Item(**i) for i in tree["items"]))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise BadInput(
                f"{path} is not a saved evaluation ({problem})", "a file written by `policyloop evaluate --save`", "A or B"
            ) from problem


def evaluate(
    engine: Engine,
    renderer: EvaluationRenderer,
    task: Task,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    version: str,
    conditions: Mapping[str, Any] | None = None,
) -> Evaluation:
    """`params.n` answers per prompt, judged by the task."""
    if not prompts:
        raise BadInput("there are no held-out prompts", "at least one", "data.eval or data.held_out_share")
    requests = [Request(f"eval/{p.id}/{i}", renderer.prompt_ids(p), params) for i, p in enumerate(prompts)]
    completions = engine.run(requests)
    items = []
    for n, c in enumerate(completions):
        p = prompts[n // params.n]
        shown = p.text or "\n".join(m.content for m in p.messages or ())
        cluster, level = str(p.meta.get("cluster", p.id)), str(p.meta.get("level", ""))
        right = task.grade(p, c)
        cut = c.finish_reason == "length"
        items.append(Item(p.id, cluster, n % params.n, right, c.length, cut, c.text, p.target, shown, level))
    decoding = {**asdict(params), "stop": list(params.stop), "stop_ids": list(params.stop_ids)}
    return Evaluation(version, task.name, {"task": task.name, "decoding": decoding, **(conditions or {})}, tuple(items))
