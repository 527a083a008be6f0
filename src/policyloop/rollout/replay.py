"""Answers that were kept, trained on again: `rollout.save` writes a step's groups as Parquet, `rollout.replay` reads such files.

The columns are the journal's (`journal.shipping.schema`), then the group they belong to, what their prompt was and what they were worth.
`offpolicy.parquet` of a curated set has less (no text, no group): its answers are grouped by prompt and keep the value that people gave.

Example:
    >>> Path("00000001.parquet").write_bytes(encode(groups))
    >>> read(Path("00000001.parquet")).groups[0].completions == groups[0].completions
    True
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policyloop.engine import Weights
from policyloop.errors import BadInput
from policyloop.journal import Record
from policyloop.journal.shipping import encoded, table_of
from policyloop.rollout.cursor import Cursor
from policyloop.rollout.source import GroupScorer
from policyloop.types import Completion, Group, Message, Progress, Prompt, Score

if TYPE_CHECKING:
    import pyarrow as pa

NEEDED = ("prompt_id", "prompt_token_ids", "token_ids", "logprobs", "version", "finish_reason")


# --- out --------------------------------------------------------------------------------------------------------------------


def encode(groups: Sequence[Group], sampling: Mapping[str, Any] | None = None, model: str = "") -> bytes:
    """Every answer of the groups as one row of a Parquet file."""
    import pyarrow as pa

    rows = [(g, i) for g in groups for i in range(len(g.completions))]
    table = table_of("records", [_record(g, i, sampling or {}, model) for g, i in rows])
    extra: dict[str, pa.Array] = {
        "group": pa.array([g.uid for g, _ in rows], pa.string()),
        "prompt_id": pa.array([g.prompt.id for g, _ in rows], pa.string()),
        "task": pa.array([g.prompt.task for g, _ in rows], pa.string()),
        "meta": pa.array([json.dumps(dict(g.prompt.meta), ensure_ascii=False, default=str) for g, _ in rows], pa.string()),
        "mask": pa.array([g.completions[i].mask for g, i in rows], pa.list_(pa.int8())),
        "reward": pa.array([g.scores[i].value for g, i in rows], pa.float64()),
        "metric": pa.array([g.scores[i].metric for g, i in rows], pa.float64()),
        "components": pa.array([_components(g.scores[i]) for g, i in rows], pa.string()),
    }
    for name, column in extra.items():
        table = table.append_column(name, column)
    return encoded(table)


def _record(group: Group, i: int, sampling: Mapping[str, Any], model: str) -> dict[str, Any]:
    p, c = group.prompt, group.completions[i]
    made = Record(
        request_id=f"{group.uid}/{i}",
        at=time.time(),
        model=model,
        version=c.policy_version,
        prompt=p.text or "" if p.messages is None else [asdict(m) for m in p.messages],
        text=c.text,
        prompt_token_ids=list(c.prompt_token_ids),
        token_ids=list(c.token_ids),
        logprobs=list(c.logprobs),
        tokens=len(c.token_ids),
        sampling=dict(sampling),
        finish_reason=c.finish_reason,
        source="rollout",
        target=p.target,
    )
    return made.row()


def _components(score: Score) -> str:
    return json.dumps({name: value if math.isfinite(value) else None for name, value in score.components.items()})


# --- in ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """`groups` in the order of the files; `judged`: their values stand in the file, nothing is scored again; `left_out`: answers without
    exact ids and log-probs, which no correction can weigh."""

    groups: tuple[Group, ...]
    judged: bool
    left_out: int


def read(path: Path, held_out: AbstractSet[str] = frozenset()) -> Recorded:
    """A file, or a folder of them. Errors: BadInput (no such file, not such a file, nothing usable, a held-out prompt in it)."""
    where = "rollout.replay"
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.exists() else []
    if not files:
        raise BadInput(f"{path} holds no Parquet file", "a run's rollouts/ folder, or an offpolicy.parquet", where)
    tables = [_table(file) for file in files]
    judged = {"value" in t.column_names for t in tables}
    if len(judged) > 1:
        raise BadInput(f"{path} mixes files of runs and of curated sets", "one kind", where)
    rows = [row for t in tables for row in t.to_pylist()]
    usable = [row for row in rows if row["token_ids"] and _finite(row["logprobs"], len(row["token_ids"]))]
    if not usable:
        raise BadInput(f"{path}: none of {len(rows)} answers has token ids and log-probs", "at least one that has", where)
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in usable:
        by_group.setdefault(row.get("group") or row["prompt_id"], []).append(row)
    groups = tuple(_group(uid, found) for uid, found in by_group.items())
    if leaked := [g.prompt.id for g in groups if g.prompt.id in held_out]:
        raise BadInput(f"{path}: prompt {leaked[0]} is held out by this recipe", "answers to training prompts", where)
    return Recorded(groups, judged.pop(), len(rows) - len(usable))


def _table(file: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    allowed = f"a file that rollout.save wrote, or offpolicy.parquet (columns {', '.join(NEEDED)})"
    try:
        table = pq.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as problem:
        raise BadInput(f"{file} is no Parquet file ({problem})", allowed, "rollout.replay") from problem
    missing = [n for n in NEEDED if n not in table.column_names]
    if not missing and not {"value", "group"} & set(table.column_names):
        missing = ["group"]
    if missing:
        raise BadInput(f"{file} has no column {missing[0]}", allowed, "rollout.replay")
    return table


def _finite(logprobs: Sequence[float] | None, count: int) -> bool:
    return logprobs is not None and len(logprobs) == count and all(x is not None and math.isfinite(x) for x in logprobs)


def _group(uid: str, rows: Sequence[Mapping[str, Any]]) -> Group:
    completions = tuple(
        Completion(
            tuple(r["prompt_token_ids"]),
            tuple(r["token_ids"]),
            tuple(r["logprobs"]),
            r["finish_reason"] or "stop",
            r["version"] or "",
            r.get("text") or "",
            tuple(r.get("mask") or ()),
        )
        for r in rows
    )
    given = [r["value"] if "value" in r else r["reward"] for r in rows]
    scores = tuple(Score(v, metric=r.get("metric", v)) for v, r in zip(given, rows, strict=True))
    return Group(uid, _prompt(rows[0]), completions, scores)


def _prompt(row: Mapping[str, Any]) -> Prompt:
    asked = json.loads(row.get("prompt") or '""')
    messages = None if isinstance(asked, str) else tuple(Message(m["role"], m["content"]) for m in asked)
    meta = json.loads(row.get("meta") or "{}")
    text = asked if messages is None else None
    return Prompt(row["prompt_id"], row.get("task") or "replay", messages, text, row.get("target"), meta)


class ReplaySource:
    """Recorded groups in the cursor's order, their answers and log-probs as they were, scored again unless people had judged them."""

    def __init__(self, recorded: Recorded, scorer: GroupScorer, *, per_step: int, seed: int) -> None:
        self.groups = {g.uid: g for g in recorded.groups}
        self.cursor = Cursor([replace(g.prompt, id=g.uid) for g in recorded.groups], seed, per_step)
        self.scorer, self.judged, self.per_step = scorer, recorded.judged, per_step
        self.metrics: dict[str, float] = {}
        self.wants_weights = False

    def next(self, progress: Progress) -> list[Group]:
        start = time.monotonic()
        groups = [replace(self.groups[d.prompt.id], uid=d.uid) for d in self.cursor.take(self.per_step)]
        waited, counters = time.monotonic(), {}
        if not self.judged:
            groups, counters = self.scorer.score(groups)
        times = {"time/data_wait_s": waited - start, "time/reward_s": time.monotonic() - waited}
        self.metrics = {**counters, **times, "policy_version_lag": math.nan}  # other runs' versions: how far behind is not known
        return groups

    def publish(self, weights: Weights) -> None:
        """Nothing samples here, so there is nobody to tell."""

    def state(self) -> dict[str, Any]:
        return {"position": self.cursor.position, "scorer": self.scorer.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.cursor.position = int(state["position"])
        self.scorer.load(state["scorer"])

    def close(self) -> None:
        """Nothing to close."""
