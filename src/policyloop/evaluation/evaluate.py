"""Evaluate: prompts through an engine, verdicts from the task, figures with intervals, everything recorded that decides them.

`conditions` are what two evaluations must share to be compared (task, parser, decoding); every item also carries a digest of the token ids
the model was fed, so that another template or system message cannot pass unseen. `about` is recorded and not compared (model, data
settings, code version).

Example:
    >>> result = evaluate(engine, renderer, task, prompts, SamplingParams(max_new_tokens=64, temperature=0), version="run#20")
    >>> result.sentence()
    'accuracy 0.790 [0.698, 0.860], length 15.2 tokens, 0 % cut off (n = 96)'
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from policyloop import __version__
from policyloop.engine import Engine, Request
from policyloop.errors import BadInput
from policyloop.evaluation import tries_of
from policyloop.stats import Interval, cluster_bootstrap, correlation, pass_at_k, quantile, share
from policyloop.tasks import Task
from policyloop.types import Completion, Prompt, SamplingParams

LEVELS = ("level", "difficulty", "operator")  # columns that say how hard a prompt is, the first that is there


class EvaluationRenderer(Protocol):
    """What evaluation needs of `models.template.Renderer`."""

    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Item:
    """One answer to one prompt. correct None = unscored: the gold cannot be judged, or the engine gave no whole answer.
    `rendered`: digest of the prompt's token ids. `level`: difficulty, where the task knows one."""

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
    rendered: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All items and what they were made under. Two evaluations compare only where `conditions` agree."""

    version: str
    task: str
    conditions: Mapping[str, Any]
    items: tuple[Item, ...] = field(default_factory=tuple)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> list[Item]:
        return [i for i in self.items if i.correct is not None]

    @property
    def samples(self) -> int:
        return 1 + max((i.sample for i in self.items), default=0)

    @property
    def accuracy(self) -> Interval:
        """Share of right answers; the interval knows that prompts with one key, and answers to one prompt, are not independent."""
        items = self.judged
        return share([float(bool(i.correct)) for i in items], [i.cluster for i in items])

    def pass_at(self, k: int) -> Interval:
        """Mean over prompts of the unbiased estimate that one of k answers is right; prompts with fewer than k judged answers are left out."""
        n, right, cluster = Counter[str](), Counter[str](), dict[str, str]()
        for i in self.judged:
            n[i.prompt_id] += 1
            right[i.prompt_id] += bool(i.correct)
            cluster[i.prompt_id] = i.cluster
        asked = [p for p in n if n[p] >= k]
        return cluster_bootstrap([pass_at_k(n[p], right[p], k) for p in asked], [cluster[p] for p in asked])

    def at_limit(self, tokens: int) -> Evaluation:
        """What a tighter token limit would have given: answers do not depend on it, so a longer one is cut off, and wrong where the task
        wants answers that stop. Errors: BadInput for a task that does not, or a limit above the one that was measured."""
        given = self.conditions["decoding"]["max_new_tokens"]
        if tokens > given or not self.conditions.get("parser", {}).get("needs_stop"):
            raise BadInput(
                f"{self.task} at {tokens} tokens cannot be read off an evaluation at {given}",
                f"up to {given} tokens, and a task whose right answers must stop (data.correct_needs_stop)",
                "the limit, or evaluate again",
            )
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
            "length_correct_corr": self.length_correlation(),
        }
        found |= {f"pass_at_{k}": self.pass_at(k).value for k in tries_of(self.samples)}
        return {f"eval/{k}": v for k, v in found.items()}

    def length_by_level(self) -> dict[str, float]:
        """Rank correlation of length and correctness inside each difficulty (S1-54): pooled, hard prompts with long wrong answers would
        make it look as if length hurt. Without difficulties, answers to the same prompt are compared where there are several."""
        if not any(i.level for i in self.items) and self.samples > 1:
            return {"answers to the same prompt": self.length_correlation()}
        return {level: _length_correlation(items) for level, items in self._by_difficulty().items()}

    def length_correlation(self) -> float:
        """One figure: the mean over difficulties, weighted by answers; NaN where no difficulty has right and wrong ones."""
        found = [(len(items), _length_correlation(items)) for items in self._by_difficulty().values()]
        known = [(n, r) for n, r in found if not math.isnan(r)]
        return sum(n * r for n, r in known) / sum(n for n, _ in known) if known else math.nan

    def _by_difficulty(self) -> dict[str, list[Item]]:
        """Judged items by level; by prompt where levels are not known and prompts have several answers."""
        items, groups = self.judged, defaultdict[str, list[Item]](list)
        graded = any(i.level for i in items)
        names = _thirds([i.level for i in items]) if graded else [i.prompt_id if self.samples > 1 else "all" for i in items]
        for name, item in zip(names, items, strict=True):
            groups[name].append(item)
        return dict(sorted(groups.items(), key=lambda group: _order(group[1][0].level)))

    def sentence(self) -> str:
        m = self.metrics()
        cut = f"{100 * m['eval/truncated_frac']:.0f} % cut off" if self.items else "nothing answered"
        extra = "".join(f", pass@{k} {m[f'eval/pass_at_{k}']:.3f}" for k in tries_of(self.samples)[-1:])
        if not self.judged:
            return f"no accuracy: none of {len(self.items)} answers could be judged (length {m['eval/length_mean']:.1f} tokens, {cut})"
        unscored = f", {m['eval/unscored']:.0f} unscored" if m["eval/unscored"] else ""
        return (
            f"accuracy {self.accuracy}{extra}, length {m['eval/length_mean']:.1f} tokens, {cut} (n = {m['eval/n']:.0f}{unscored})"
        )

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1), encoding="utf-8", errors="surrogatepass")

    @staticmethod
    def load(path: Path) -> Evaluation:
        try:
            tree = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
            items = tuple(Item(**i) for i in tree["items"])
            return Evaluation(tree["version"], tree["task"], tree["conditions"], items, tree.get("about", {}))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise BadInput(
                f"{path} is not a saved evaluation ({problem})", "a file written by `policyloop evaluate --save`", "A or B"
            ) from problem


def _length_correlation(items: Sequence[Item]) -> float:
    return correlation([i.length for i in items], [float(bool(i.correct)) for i in items])


def _order(level: str) -> tuple[bool, float, str]:
    """Numbers by size, then words by letter."""
    try:
        return False, float(level), ""
    except ValueError:
        return True, 0.0, level


def _thirds(levels: Sequence[str]) -> list[str]:
    """Levels as they are, or as thirds where they are more than five different numbers."""
    try:
        numbers = [float(level) for level in levels]
    except ValueError:
        return list(levels)
    if len(set(numbers)) <= 5:
        return list(levels)
    low, high = (quantile(numbers, q) for q in (1 / 3, 2 / 3))
    names = (f"up to {low:.3g}", f"above {low:.3g}, up to {high:.3g}", f"above {high:.3g}")
    return [names[(x > low) + (x > high)] for x in numbers]


def evaluate(
    engine: Engine,
    renderer: EvaluationRenderer,
    task: Task,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    version: str,
    about: Mapping[str, Any] | None = None,
    chunk: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> Evaluation:
    """`params.n` answers per prompt, judged by the task. `chunk`: prompts per call of the engine (None = all at once); `on_progress`
    hears after each how many prompts of how many are done. The answers do not depend on it: random numbers belong to a row, not a batch."""
    if not prompts:
        raise BadInput("there are no held-out prompts", "at least one", "data.eval or data.held_out_share")
    began = time.monotonic()
    requests = [Request(f"eval/{p.id}/{i}", renderer.prompt_ids(p), params) for i, p in enumerate(prompts)]
    items, size = list[Item](), chunk or len(prompts)
    for start in range(0, len(prompts), size):
        part = slice(start, start + size)
        completions = iter(engine.run(requests[part]))
        for prompt, request in zip(prompts[part], requests[part], strict=True):
            rendered = _digest(request.prompt_token_ids)
            items += [_item(task, prompt, rendered, n, next(completions)) for n in range(params.n)]
        on_progress(min(start + size, len(prompts)), len(prompts))
    decoding = {**asdict(params), "stop": list(params.stop), "stop_ids": list(params.stop_ids)}
    conditions = {"task": task.name, "parser": parser_of(task), "decoding": decoding}
    prompt_tokens = params.n * sum(len(r.prompt_token_ids) for r in requests)
    measured = {"policyloop": __version__, "seconds": time.monotonic() - began, "prompt_tokens": prompt_tokens}
    return Evaluation(version, task.name, conditions, tuple(items), {**measured, **(about or {})})


def _item(task: Task, prompt: Prompt, rendered: str, sample: int, c: Completion) -> Item:
    shown = prompt.text or "\n".join(m.content for m in prompt.messages or ())
    whole = c.finish_reason in ("stop", "length")
    return Item(
        prompt_id=prompt.id,
        cluster=str(prompt.meta.get("cluster", prompt.id)),
        sample=sample,
        correct=task.grade(prompt, c) if whole else None,
        length=c.length,
        truncated=c.finish_reason == "length",
        text=c.text,
        target=prompt.target,
        prompt=shown,
        level=level_of(prompt),
        rendered=rendered,
    )


def level_of(prompt: Prompt) -> str:
    """How hard a prompt is, as the data says it; else the number of lines of its worked solution; else unknown."""
    for key in LEVELS:
        if isinstance(prompt.meta.get(key), (str, int, float)):
            return str(prompt.meta[key])
    worked = prompt.meta.get("demonstration")
    return str(sum(bool(line.strip()) for line in worked.splitlines())) if isinstance(worked, str) else ""


def parser_of(task: Task) -> dict[str, Any]:
    """Who judges: the task's class, its verdict's settings where it has one, and whether a right answer must stop by itself."""
    verdict = getattr(task, "verdict", None)
    return {
        "grader": f"{type(task).__module__}.{type(task).__qualname__}" + ("" if verdict is None else f" {verdict!r}"),
        "needs_stop": task.correct_needs_stop,
    }


def _digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(" ".join(map(str, ids)).encode(), digest_size=6).hexdigest()
