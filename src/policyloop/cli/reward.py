"""`policyloop reward try|agree CONFIG`: do the rewards pay a right answer best, and does a judge agree with labels? Asked before training."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from policyloop.errors import BadInput, No
from policyloop.types import Completion, Group, Prompt

if TYPE_CHECKING:
    from rich.table import Table

    from policyloop.rewards import Grade
    from policyloop.rewards.scorer import Scorer

KINDS = ("gold", "empty", "shuffled", "wrong")
FORMS = ("The answer is {answer}.", "#### {answer}", "<answer>{answer}</answer>", "\\boxed{{answer}}", "#{answer}", "{answer}")
MOST_SHOWN = 5


def try_rewards(
    config: Annotated[Path, typer.Argument(help="A recipe (YAML).")],
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many training rows.")] = 20,
    form: Annotated[str | None, typer.Option("--form", help="Text around an answer (default: one the task reads).")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override one key: a.b=c. May be repeated.")] = None,
) -> None:
    """Score rows with their gold, empty, shuffled and wrong answers. Exit code 3 when a gold answer does not score highest."""
    from rich.console import Console

    from policyloop.recipe import load
    from policyloop.rewards.scorer import Scorer
    from policyloop.tasks import load_task

    if form is not None and "{answer}" not in form:
        raise BadInput(f"--form {form!r}", "a text with {answer} in it", "--form")
    recipe = load(config, set_ or [])
    task = load_task(recipe.data, recipe.training.seed)
    prompts = task.train()
    scorer = Scorer.from_settings(recipe.rewards, grade=task.grade, prompts=prompts, max_new_tokens=recipe.rollout.max_new_tokens)
    chosen = [p for p in prompts if p.target is not None][:rows]
    if not chosen:
        raise BadInput(f"no row of {task.name} has an answer", "rows with a gold answer", "data.columns")
    form = form or readable_form(chosen, task.grade)
    groups, _ = scorer.score(tried(chosen, form))
    print(f"{len(groups)} rows of {task.name}; answers are the row's demonstration, or {form!r}")
    Console().print(table(groups, scorer))
    for line in [*scorer.problems(), *flat(groups, scorer.names)]:
        print(line)
    if recipe.rewards.token_efficiency is not None:
        print("lengths are counted in words and signs here, not in tokens")
    verdict(groups)


def agree(
    config: Annotated[Path, typer.Argument(help="A recipe (YAML) whose rewards have a judge.")],
    pairs: Annotated[str, typer.Argument(help="Labelled pairs: a file of (prompt, chosen, rejected) rows.")],
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many pairs, drawn by hash.")] = 100,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override one key: a.b=c. May be repeated.")] = None,
) -> None:
    """Ask the recipe's judge about labelled pairs: how often it agrees, ties, and flips with the order of the answers."""
    from policyloop.recipe import load
    from policyloop.rewards import JudgeSettings
    from policyloop.rewards.judge import agreement
    from policyloop.rewards.running import run
    from policyloop.tasks import DataSettings
    from policyloop.tasks.items import shuffled
    from policyloop.tasks.preference import load as load_pairs

    judges = [t for t in load(config, set_ or []).rewards.terms if isinstance(t, JudgeSettings)]
    if not judges:
        raise BadInput(f"{config} has no judge", "rewards: [{judge: {url: ..., model: ...}}]", "rewards")
    prompts = load_pairs(DataSettings(task="preference", path=pairs, held_out_share=0.0), 0).train()
    chosen = shuffled(prompts, 0, lambda p: f"{p.id}/{p.meta['rejected']}")[:rows]
    for term in judges:
        print(f"{term.name} ({term.model}): {run(agreement(term.judge(), chosen)).sentence()}")


def readable_form(prompts: Sequence[Prompt], grade: Grade) -> str:
    """The form in which the task's own verifier finds most gold answers; the first one if it judges none."""
    return max(FORMS, key=lambda form: sum(grade(p, spoken(form.replace("{answer}", p.target or ""))) is True for p in prompts))


def tried(prompts: Sequence[Prompt], form: str) -> list[Group]:
    """One group per prompt: its gold answer, nothing, another row's answer, a changed answer."""
    golds = [p.target or "" for p in prompts]
    groups = []
    for number, (prompt, gold) in enumerate(zip(prompts, golds, strict=True)):
        others = [g for g in golds[number + 1 :] + golds[:number] if g.strip() != gold.strip()]
        shuffled = random.Random(number).choice(others) if others else changed(gold)
        texts = (written(prompt, gold, form), "", written(prompt, shuffled, form), written(prompt, changed(gold), form))
        groups.append(Group(prompt.id, prompt, tuple(spoken(text) for text in texts)))
    return groups


def written(prompt: Prompt, answer: str, form: str) -> str:
    """The row's demonstration with `answer` as its last word on the matter, or the answer in the given form."""
    gold, demonstration = prompt.target or "", prompt.meta.get("demonstration")
    if isinstance(demonstration, str) and gold and gold in demonstration:
        before, _, after = demonstration.rpartition(gold)
        return before + answer + after
    return form.replace("{answer}", answer)


def changed(gold: str) -> str:
    """Near the gold, and not it: the last digit one higher; words become other words."""
    digits = list(re.finditer(r"\d", gold))
    if not digits:
        return "none of these"
    at = digits[-1].start()
    return f"{gold[:at]}{(int(gold[at]) + 1) % 10}{gold[at + 1 :]}"


def spoken(text: str) -> Completion:
    """As if a model had written it and stopped; one token per word or sign, and one for the stop."""
    ids = tuple(range(len(re.findall(r"\w+|[^\w\s]", text)) + 1))
    return Completion((), ids, (0.0,) * len(ids), "stop", "reward-try", text)


def table(groups: Sequence[Group], scorer: Scorer) -> Table:
    """Mean raw parts and mean reward of each kind of answer."""
    from rich.table import Table

    out = Table()
    for column in ("answer", *scorer.names, "reward", "right"):
        out.add_column(column, justify="left" if column == "answer" else "right")
    for k, kind in enumerate(KINDS):
        scores = [g.scores[k] for g in groups]
        parts = [[s.components[name] for s in scores] for name in scorer.names]
        out.add_row(kind, *(mean(x) for x in [*parts, [s.value for s in scores], [s.metric for s in scores]]))
    return out


def flat(groups: Sequence[Group], names: Sequence[str]) -> list[str]:
    """Rewards that say the same of every answer tried."""
    values = {name: {s.components[name] for g in groups for s in g.scores} for name in names}
    return [
        f"reward {name} is {next(iter(found)):g} on every answer tried: it teaches nothing, or --form should show it what it pays"
        for name, found in values.items()
        if len(found) == 1
    ]


def mean(values: Sequence[float | None]) -> str:
    """Over what there is; how much is missing is said."""
    known = [v for v in values if v is not None and v == v]
    missing = f" ({len(values) - len(known)} none)" if len(known) < len(values) else ""
    return (f"{statistics.fmean(known):.3f}" if known else "–") + missing


def verdict(groups: Sequence[Group]) -> None:
    """Errors: No, when any row's gold answer does not score above its other three."""
    worse = [g for g in groups if not gold_wins(g)]
    for group in worse[:MOST_SHOWN]:
        scored = ", ".join(
            f"{kind} {s.value if s.value is None else format(s.value, 'g')}" for kind, s in zip(KINDS, group.scores, strict=True)
        )
        print(f"prompt {group.prompt.id}, gold {group.prompt.target!r}, as {group.completions[0].text!r:.100}: {scored}")
    if worse:
        raise No(
            f"warning: the gold answer does not score highest on {len(worse)} of {len(groups)} rows",
            "a reward that pays right answers best",
            "rewards, data.grader, or --form if answers must look otherwise",
        )
    print(f"the gold answer scores highest on all {len(groups)} rows")


def gold_wins(group: Group) -> bool:
    gold, *others = (s.value for s in group.scores)
    return gold is not None and all(other is None or other < gold for other in others)
