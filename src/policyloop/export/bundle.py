"""A bundle: weights, tokenizer with template, generation config, golden prompts, and a manifest that is written last.

    <bundle>/{config.json, *.safetensors | model.gguf, tokenizer..., generation_config.json, golden.jsonl, manifest.json}

The manifest is that of a version in the store (`store.manifest`) without name and number: kind, base, files with sha256, lineage,
serving {template, eos_ids, sampling, parser, golden}, checks {parity}. The folder is a MODEL for every other verb.

An export ends in the parity check: the trained model answers the golden prompts, the bundle is loaded from its files and asked the same.
Beyond a threshold the bundle stays (for looking at) and its check says passed: false, which forbids promotion.

Example:
    >>> made = export("run://wp@best", Path("out/wp"), ExportSettings(), Origin(prompts=task.held_out(1)[:16]))
    >>> print("\\n".join(made.lines()))
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from policyloop import __version__
from policyloop.errors import BadInput, Conflict
from policyloop.evaluation.distance import Answer, Distance, answers, distance
from policyloop.evaluation.model import open_model
from policyloop.export import FORMATS, ExportSettings, ParitySettings
from policyloop.export.source import Source
from policyloop.models.catalogue import resolve
from policyloop.models.template import Renderer
from policyloop.store.manifest import SCHEMA, File, identity, role_of
from policyloop.types import Message, Prompt

MANIFEST, GOLDEN = "manifest.json", "golden.jsonl"
# asked where no task gives its own held-out prompts
QUESTIONS = (
    "What is 7 + 5?",
    "A farmer has 12 eggs and sells 4. How many are left?",
    "Name three colours of the rainbow.",
    "Write a Python function that adds two numbers.",
    "What is the capital of France?",
    "小明有5个苹果，吃了2个，还剩几个？",
    "Explain in one sentence why the sky is blue.",
    "Translate to German: good morning.",
    "List the first five prime numbers.",
    "Is 21 divisible by 3? Answer yes or no.",
    "Give a synonym of happy.",
    "What comes next: 2, 4, 8, 16?",
    "Summarise: The cat sat on the mat and slept all day.",
    "How many minutes are in two hours?",
    "Write a haiku about rain.",
    "Convert 3/4 to a decimal.",
)


@dataclass(frozen=True)
class Origin:
    """What the bundle should say of itself besides its weights. `prompts`: golden ones (none = QUESTIONS). `parser`: how questions are
    framed and answers read. `sampling`: how it was evaluated. `lineage`, `evaluation`: as the store's manifest has them."""

    prompts: Sequence[Prompt] = ()
    parser: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bundle:
    """A finished export. `reasons`: why it may not be promoted (none: it may)."""

    folder: Path
    manifest: Mapping[str, Any]
    distance: Distance
    reasons: tuple[str, ...]

    @property
    def promotable(self) -> bool:
        return not self.reasons

    def lines(self) -> list[str]:
        size = sum(f["size"] for f in self.manifest["files"]) / 1e6
        verdict = "parity holds" if self.promotable else f"NOT PROMOTABLE: {'; '.join(self.reasons)}"
        return [f"{self.manifest['kind']}: {len(self.manifest['files'])} files, {size:.1f} MB", self.distance.sentence(), verdict]


def export(
    model: str,
    to: Path,
    settings: ExportSettings,
    origin: Origin | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Bundle:
    """MODEL as a bundle in the folder `to`, which appears whole or not at all. Errors: Conflict where `to` exists and not `force`;
    BadInput for a model that the format cannot hold; StaleVersion for an adapter of other weights."""
    origin = origin or Origin()
    if to.exists() and not force:
        raise Conflict(f"{to} exists already", "another folder, or --force", "--to")
    if to.exists() and not (to / MANIFEST).exists():
        raise BadInput(f"{to} is no bundle", "a new folder, or an earlier export", "--to")
    source = Source.of(resolve(model))
    to.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        kind, base = FORMATS[settings.format](source, work, settings)
        say(f"wrote {settings.format}; asking both models {settings.parity.prompts} golden prompts")
        if kind != "gguf":
            source.renderer.save(work)
        said = golden(model, source.renderer, origin.prompts, settings.parity)
        found = measured(work, said)
        reasons = beyond(found, settings.parity)
        (work / GOLDEN).write_text(
            "".join(json.dumps(asdict(a), ensure_ascii=False) + "\n" for a in said), encoding="utf-8", errors="surrogatepass"
        )
        made = manifest(work, kind, base, source, origin, parity_check(found, settings.parity, reasons))
        (work / MANIFEST).write_text(json.dumps(made, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        work.chmod(0o755)
        if to.exists():
            shutil.rmtree(to)
        work.rename(to)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Bundle(to, made, found, reasons)


# --- parity -----------------------------------------------------------------------------------------------------------------


def golden(model: str, renderer: Renderer, prompts: Sequence[Prompt], parity: ParitySettings) -> list[Answer]:
    """What the trained model says to the golden prompts."""
    asked = list(prompts) or [
        Prompt.make("golden", [Message("user", text)] if renderer.chat else text) for text in QUESTIONS[: parity.prompts]
    ]
    ids = {p.id: renderer.prompt_ids(p) for p in asked[: parity.prompts]}
    with open_model(model) as trained:
        return answers(trained.engine, ids, parity.max_new_tokens)


def measured(bundle: Path, said: Sequence[Answer]) -> Distance:
    """The bundle, loaded from its files, beside what the trained model said."""
    with open_model(str(bundle)) as exported:
        return distance(said, exported.engine)


def recheck(bundle: Path, parity: ParitySettings | None = None) -> tuple[Distance, tuple[str, ...]]:
    """Ask a bundle its golden prompts again, without the model it was made of: after a copy, on another machine, with another engine."""
    lines = (bundle / GOLDEN).read_text(encoding="utf-8", errors="surrogatepass").splitlines()
    found = measured(bundle, [Answer.of(json.loads(line)) for line in lines])
    return found, beyond(found, parity or ParitySettings())


def beyond(found: Distance, parity: ParitySettings) -> tuple[str, ...]:
    """Which thresholds are passed; a distance that is no number passes all of them."""
    checks = (
        (found.kl <= parity.max_kl, f"KL {found.kl:.2g} a token is above {parity.max_kl:g}"),
        (found.logprob_mean <= parity.max_logprob, f"log-probs are {found.logprob_mean:.2g} apart, above {parity.max_logprob:g}"),
        (
            found.greedy_same >= parity.min_greedy_same,
            f"{found.greedy_same:.0%} of the greedy answers are alike, below {parity.min_greedy_same:.0%}",
        ),
    )
    return tuple(reason for good, reason in checks if not good)


def parity_check(found: Distance, parity: ParitySettings, reasons: Sequence[str]) -> dict[str, Any]:
    """The manifest's `checks.parity`; numbers as text where JSON has none for them."""
    plain = {k: v if abs(v) < float("inf") else str(v) for k, v in asdict(found).items()}
    limits = {k: v for k, v in asdict(parity).items() if k.startswith(("max_k", "max_l", "min_"))}
    return {"passed": not reasons, "reasons": list(reasons), "distance": plain, "limits": limits}


# --- manifest ---------------------------------------------------------------------------------------------------------------


def manifest(
    folder: Path, kind: str, base: Mapping[str, Any] | None, source: Source, origin: Origin, parity: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything but name and number, which a store gives."""
    files = [
        File(p.relative_to(folder).as_posix(), p.stat().st_size, _sha256(p), role_of(p.name))
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    ]
    template = source.renderer.tokenizer.chat_template
    serving = {
        "template": template if isinstance(template, str) else None,
        "eos_ids": list(source.renderer.stop_ids),
        "sampling": dict(origin.sampling),
        "parser": dict(origin.parser),
        "golden": GOLDEN,
    }
    return {
        "schema": SCHEMA,
        "id": identity(files, origin.lineage),
        "kind": kind,
        "base": base,
        "files": [asdict(f) for f in files],
        "lineage": dict(origin.lineage),
        "evaluation": dict(origin.evaluation),
        "serving": serving,
        "checks": {"parity": dict(parity)},
        "created": {"at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "policyloop": __version__},
    }


def verify(bundle: Path) -> list[str]:
    """What is not as the manifest says: changed, missing and unnamed files. Errors: BadInput for a folder that is no bundle."""
    try:
        tree = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
        listed = {f["path"]: f for f in tree["files"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadInput(
            f"{bundle} is no bundle ({type(problem).__name__})", "a folder made by `policyloop export`", str(bundle)
        ) from None
    there = {p.relative_to(bundle).as_posix(): p for p in bundle.rglob("*") if p.is_file() and p.name != MANIFEST}
    wrong = [f"{name} is missing" for name in sorted(listed.keys() - there.keys())]
    wrong += [f"{name} is not in the manifest" for name in sorted(there.keys() - listed.keys())]
    return wrong + [
        f"{name} was changed" for name in sorted(listed.keys() & there.keys()) if _sha256(there[name]) != listed[name]["sha256"]
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
