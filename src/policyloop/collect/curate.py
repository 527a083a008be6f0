"""Curation: exchanges with their votes in, a training set in the store out, every row with the requests it comes from.

Example:
    >>> rows = Rows.of(exchanges, CollectSettings(), held_out=["What is 2+3?"])
    >>> rows.prompts[0]
    {'prompt': 'What is 4+4?', 'answer': '8', 'id': 'fb-...', 'priority': 'wrong', 'value': 0.0, 'tokens': 31, 'requests': ['r7']}
"""

from __future__ import annotations

import hashlib
import io
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from policyloop.collect import CollectSettings
from policyloop.collect.voices import heard, majority, opinion, strongest
from policyloop.journal.shipping import Shelf
from policyloop.store import Version, open_store
from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.grading import Verdict, readable
from policyloop.tasks.overlap import find_overlap, normalise

PRIORITY = {"wrong": 0, "wasteful": 1, "other": 2}


@dataclass
class Answer:
    """One exchange: what it is worth in [0, 1] (None: nobody knows) and how long it was."""

    row: dict[str, Any]
    value: float | None = None
    wasteful: bool = False

    @property
    def tokens(self) -> int:
        return self.row["tokens"] or len(self.row["text"])


@dataclass
class Question:
    """All exchanges about one prompt."""

    key: str
    prompt: Any
    answers: list[Answer] = field(default_factory=list)
    target: str | None = None

    @property
    def requests(self) -> list[str]:
        return [a.row["request_id"] for a in self.answers]

    @property
    def text(self) -> str:
        return last_words(self.prompt)

    def judge(self) -> None:
        """The target most voices name; then every answer against it, or by opinion where there is none."""
        said = strongest(v for a in self.answers for v in a.row["votes"] if v["kind"] == "answer")
        self.target = majority((v["voice"], str(v["value"])) for v in sorted(said, key=lambda v: v["at"]))
        verdict = None if self.target is None else Verdict("math" if readable([self.target])[0] else "text")
        for answer in self.answers:
            right = None if verdict is None or self.target is None else verdict.matches(answer.row["text"], self.target)
            answer.value = opinion(answer.row["votes"]) if right is None else float(right)

    @property
    def good(self) -> list[Answer]:
        return [a for a in self.answers if a.value is not None and a.value >= 0.5]

    @property
    def bad(self) -> list[Answer]:
        return [a for a in self.answers if a.value is not None and a.value < 0.5]

    def priority(self) -> str:
        return "wrong" if self.bad else "wasteful" if any(a.wasteful for a in self.answers) else "other"


@dataclass
class Rows:
    """What a set holds, and what was left out."""

    prompts: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    sft: list[dict[str, Any]] = field(default_factory=list)
    offpolicy: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    set_aside: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(exchanges: Sequence[dict[str, Any]], chosen: CollectSettings, held_out: Sequence[str] = ()) -> Rows:
        """`held_out`: questions that must not be trained on."""
        made = Rows(set_aside=heard(exchanges, chosen))
        questions = by_question(exchanges)
        clean = without_held_out(questions, held_out, chosen.near)
        for question in clean:
            question.judge()
        mark_wasteful(clean, chosen.long)
        known = [q for q in clean if q.target is not None or q.good or q.bad or edits(q)]
        known.sort(key=lambda q: (PRIORITY[q.priority()], -max(a.row["at"] for a in q.answers), q.key))
        with_target = [q for q in known if q.target is not None]
        made.prompts = [prompt_row(q) for q in with_target[: chosen.limit]]
        made.pairs = [row for q in known for row in pair_rows(q, chosen.long)]
        made.sft = [row for q in known for row in sft_rows(q, chosen.good)]
        made.offpolicy = [row for q in known for row in offpolicy_rows(q)]
        made.counts = {
            "requests": len(exchanges),
            "with_feedback": sum(bool(row["votes"]) for row in exchanges),
            "questions": len(questions),
            "held_out_copies": len(questions) - len(clean),
            "without_evidence": len(clean) - len(known),
            "redacted": sum(bool(row["redacted"]) for row in exchanges),
            **{name: len(getattr(made, name)) for name in ("prompts", "pairs", "sft", "offpolicy")},
            **{f"prompts_{name}": n for name, n in Counter(row["priority"] for row in made.prompts).items()},
        }
        return made

    def files(self) -> dict[str, bytes]:
        files = {f"{name}.jsonl": lines(getattr(self, name)) for name in ("prompts", "pairs", "sft")}
        return files | {"offpolicy.parquet": parquet(self.offpolicy)}


def by_question(exchanges: Sequence[dict[str, Any]]) -> list[Question]:
    """Equal prompts (system message included) are one question."""
    found: dict[str, Question] = {}
    for row in exchanges:
        if not last_words(row["prompt"]).strip():
            continue
        spoken = row["prompt"] if isinstance(row["prompt"], str) else [[m["role"], m["content"]] for m in row["prompt"]]
        name = normalise(json.dumps(spoken, ensure_ascii=False))
        key = "fb-" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        found.setdefault(key, Question(key, row["prompt"])).answers.append(Answer(row))
    return list(found.values())


def last_words(prompt: Any) -> str:
    """The question itself: the text, or the last message that is not the model's."""
    if isinstance(prompt, str):
        return prompt
    return next((m["content"] for m in reversed(prompt) if m["role"] in ("user", "tool")), "")


def without_held_out(questions: list[Question], held_out: Sequence[str], near: float | None) -> list[Question]:
    """Copies of held-out questions go: exact ones, and those with nearly all 5-grams in common."""
    texts = [q.text for q in questions]
    overlap = find_overlap(list(held_out), texts, 1.01 if near is None else near)
    copies = {j for _, j in overlap.exact} | {j for _, j, _ in overlap.near}
    return [q for j, q in enumerate(questions) if j not in copies]


def mark_wasteful(questions: Sequence[Question], long: float) -> None:
    """Right but too long: against the other right answers to the same question where there are some, else against all right answers."""
    everywhere = [a.tokens for q in questions for a in q.good]
    for question in questions:
        here = [a.tokens for a in question.good]
        usual = statistics.median_low(here if len(here) > 1 else everywhere) if everywhere else 0
        for answer in question.good:
            answer.wasteful = answer.tokens > long * usual


def edits(question: Question) -> list[tuple[Answer, str]]:
    """Answers that somebody wrote anew, with the last label's or else the last voice's text."""
    found = []
    for answer in question.answers:
        if said := strongest(v for v in answer.row["votes"] if v["kind"] == "edit"):
            found.append((answer, str(said[-1]["value"])))
    return found


def prompt_row(q: Question) -> dict[str, Any]:
    values = [a.value for a in q.answers if a.value is not None]
    return {
        "prompt": q.prompt,
        "answer": q.target,
        "id": q.key,
        "priority": q.priority(),
        "value": statistics.fmean(values) if values else None,
        "tokens": round(statistics.fmean(a.tokens for a in q.answers)),
        "requests": q.requests,
    }


def pair_rows(q: Question, long: float) -> list[dict[str, Any]]:
    """An edit over what it replaced; the best answer over the worst; of two right ones the short over the one `long` times as long."""
    made = [
        _pair(q, text, answer.row["text"], "edit", [answer])
        for answer, text in edits(q)
        if normalise(text) != normalise(answer.row["text"])
    ]
    good = sorted(q.good, key=lambda a: (-(a.value or 0.0), a.tokens))
    bad = sorted(q.bad, key=lambda a: (a.value or 0.0, -a.tokens))
    if good and bad:
        made.append(_pair(q, good[0].row["text"], bad[0].row["text"], "better", [good[0], bad[0]]))
    elif (
        good and (longest := max(good, key=lambda a: a.tokens)).tokens > long * good[0].tokens and longest.value == good[0].value
    ):
        made.append(_pair(q, good[0].row["text"], longest.row["text"], "shorter", [good[0], longest]))
    return made


def _pair(q: Question, chosen: str, rejected: str, why: str, of: Sequence[Answer]) -> dict[str, Any]:
    return {"prompt": q.prompt, "chosen": chosen, "rejected": rejected, "why": why, "requests": [a.row["request_id"] for a in of]}


def sft_rows(q: Question, good: float) -> list[dict[str, Any]]:
    """What somebody wrote instead; else the shortest answer that is good enough to imitate."""
    shown = [(text, a) for a, text in edits(q)]
    if not shown:
        worthy = [a for a in q.good if (a.value or 0.0) >= good and not a.wasteful and a.row["finish_reason"] in ("stop", "")]
        shown = [(a.row["text"], a) for a in sorted(worthy, key=lambda a: a.tokens)[:1]]
    return [
        {"prompt": q.prompt, "answer": q.target, "demonstration": text, "id": f"{q.key}-{i}", "requests": [a.row["request_id"]]}
        for i, (text, a) in enumerate(shown)
        if text.strip()
    ]


def offpolicy_rows(q: Question) -> list[dict[str, Any]]:
    """Answers whose exact ids and log-probs are there. A redacted one has none and never comes here."""
    names = ("request_id", "version", "prompt_token_ids", "token_ids", "logprobs", "sampling", "finish_reason")
    return [
        {**{n: a.row[n] for n in names}, "prompt_id": q.key, "value": a.value}
        for a in q.answers
        if a.value is not None and a.row["token_ids"] and a.row["logprobs"] and not a.row["redacted"]
    ]


def lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "replace")


def parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, ids = pa.string(), pa.list_(pa.int32())
    shape = pa.schema(
        [(n, text) for n in ("request_id", "prompt_id", "version", "sampling", "finish_reason")]
        + [("prompt_token_ids", ids), ("token_ids", ids), ("logprobs", pa.list_(pa.float32())), ("value", pa.float64())]
    )
    sink = io.BytesIO()
    flat = [{**row, "sampling": json.dumps(row["sampling"])} for row in rows]
    pq.write_table(pa.Table.from_pylist(flat, schema=shape), sink, compression="zstd")
    return sink.getvalue()


# --- from the store, into the store -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curated:
    rows: Rows
    version: Version | None

    @property
    def counts(self) -> dict[str, int]:
        return self.rows.counts


def exchanges_of(chosen: CollectSettings, since: float, until: float) -> list[dict[str, Any]]:
    """Requests of that time with the votes that came until now."""
    from policyloop.collect.duckdb import joined

    shelf = Shelf.at(chosen.store)
    return joined(shelf.read("records", since, until), shelf.read("feedback", since, until), chosen.shared_keys, chosen.model)


def held_out_texts(suites: Sequence[DataSettings]) -> list[str]:
    """The questions of held-out suites, as the model is asked and as the files have them."""
    texts = []
    for suite in suites:
        task = load_task(suite, 0)
        texts += [
            last_words([asdict(m) for m in p.messages] if p.messages is not None else p.text or "") for p in task.held_out(0)
        ]
        texts += [item.spoken for item in getattr(task, "held_out_items", ())]
    return list(dict.fromkeys(texts))


def curate(
    chosen: CollectSettings, held_out: Sequence[DataSettings] = (), *, now: float | None = None, dry_run: bool = False
) -> Curated:
    """Read, judge, write. The same journal gives the same set (and no second version of it)."""
    until = time.time() if now is None else now
    since = until - chosen.days * 86400
    store = open_store(chosen.store).on("datasets")
    exchanges = exchanges_of(chosen, since, until)
    newest = max((max([row["at"], *(v["at"] for v in row["votes"])]) for row in exchanges), default=0.0)
    rows = Rows.of(exchanges, chosen, held_out_texts(held_out))
    if dry_run or not (rows.prompts or rows.pairs or rows.sft):
        return Curated(rows, None)
    about = {"counts": rows.counts, "set_aside": rows.set_aside, "settings": asdict(chosen), "newest": newest}
    files = rows.files() | {"curation.json": json.dumps(about, indent=1, ensure_ascii=False).encode()}
    parents = store.numbers(chosen.name)
    lineage = {
        "kind": "curated",
        "journal": store.uri,
        "held_out": [asdict(s) for s in held_out],
        "parent": f"{chosen.name}@{parents[-1]}" if parents else None,
    }
    reason = ", ".join(f"{rows.counts[n]} {n}" for n in ("prompts", "pairs", "sft"))
    known = store.versions(chosen.name)[-1:] if parents else []
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    if known and {f.path: f.sha256 for f in known[0].files} == digests:
        return Curated(rows, known[0])
    return Curated(rows, store.publish(chosen.name, files, lineage=lineage, reason=reason))


def valued(exchanges: Sequence[dict[str, Any]], chosen: CollectSettings) -> list[float | None]:
    """What each answer is worth, in the order given; None: nobody knows."""
    heard(exchanges, chosen)
    worth: dict[str, float | None] = {}
    for question in by_question(exchanges):
        question.judge()
        worth |= {a.row["request_id"]: a.value for a in question.answers}
    return [worth.get(row["request_id"]) for row in exchanges]


def new_evidence(chosen: CollectSettings, *, now: float | None = None) -> int:
    """Requests with votes that the newest set does not hold yet: what a trigger counts."""
    until = time.time() if now is None else now
    store = open_store(chosen.store).on("datasets")
    numbers = store.numbers(chosen.name)
    seen = 0.0
    if numbers:
        seen = float(json.loads(store.read(store.version(chosen.name, numbers[-1]), "curation.json"))["newest"])
    rows = exchanges_of(chosen, until - chosen.days * 86400, until)
    heard(rows, chosen)
    return sum(any(v["at"] > seen for v in row["votes"]) for row in rows)
