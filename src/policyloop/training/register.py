"""From a run to the store: the chosen checkpoint becomes a version with its lineage; a checkpoint from elsewhere enters as it is.

In: a run folder (its manifest, events and checkpoints), or any model folder. Out: a version. No torch.

Example:
    >>> register(open_store("store"), Path("runs/demo"), name="answers", which="best")
    Version(name='answers', number=1, kind='lora', lineage={'run': 'demo', 'step': 20, ...}, ...)
"""

from __future__ import annotations

import hashlib
import importlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from policyloop.errors import BadInput, NotFound, Problem, StoreError
from policyloop.store import Shelf, Store, StoreSettings, Version, actor, open_store, stored, version_in
from policyloop.store.moves import set_alias
from policyloop.store.registry import UNSAFE, Files
from policyloop.store.retention import gc
from policyloop.store.uris import LAST
from policyloop.training.checkpoint import Checkpoint, Checkpoints
from policyloop.training.folder import RunFolder
from policyloop.types import Prompt

NOT_SERVED = ("reference.safetensors",)  # the KL anchor: needed to resume, not to answer
FIGURES = ("accuracy", "length_mean", "truncated_frac", "tokens_per_correct", "margin", "calibration_error", "kendall_tau_b")
REWARD_MODEL = "reward_model"  # folder of a run that trained one
Bundler = Callable[
    [Path, Path], object
]  # (a checkpoint's policy, a new folder): writes the bundle there. Export lies above this room


def sources(train: Iterable[Prompt], held_out: Iterable[Prompt], task: str, base: Path, model: str) -> dict[str, Any]:
    """What a run learns from, for its `sources` event: hashes of the prompts (text, target and task decide a prompt's id) and the parent."""
    parent = version_in(base)
    ids = {"train": sorted(p.id for p in train), "held_out": sorted(p.id for p in held_out)}
    data = [
        {"task": task, "split": split, "prompts": len(found), "sha256": hashlib.sha256("\n".join(found).encode()).hexdigest()}
        for split, found in ids.items()
    ]
    return {"data": data, "parent": model if parent is None else str(parent)}


def register(
    store: Store,
    run: Path,
    *,
    name: str | None = None,
    which: str = "best",
    by: str | None = None,
    reason: str = "",
    checks: Mapping[str, Any] | None = None,
    type: str = "registered",
) -> Version:
    """A run's checkpoint as a version. which: best (by the run's own metric; the last where nothing was evaluated), last, or a step.
    Errors: NotFound (no whole checkpoint), StoreError."""
    folder = RunFolder(run)
    if not (run / "manifest.json").exists():
        raise NotFound(f"{run} is no run", "a folder with manifest.json and checkpoints/", "the run")
    config = folder.manifest()["config"]
    chosen = _chosen(run, "last" if store.shelf == "reward_models" else which, config)
    lineage, given = lineage_of(folder, chosen.step), config["model"]["base_model_path"]
    base = _base_name(given, lineage["parent"])
    trained = run / REWARD_MODEL if store.shelf == "reward_models" else None
    files = _files(run, chosen, base, trained)
    lora = "adapter_config.json" in files
    return store.publish(
        name or run.name,
        files,
        by=by,
        reason=reason or f"step {chosen.step} of {run.name}",
        kind="reward_model" if trained is not None else "lora" if lora else "full",
        base={"model": base or given} if lora else None,
        lineage=lineage,
        evaluation=evaluation_of(folder, chosen.step),
        checks=checks,
        type=type,
    )


def bring_in(
    store: Store,
    folder: Path,
    *,
    name: str | None = None,
    which: str = "best",
    by: str | None = None,
    reason: str = "",
    lineage: Mapping[str, Any] | None = None,
) -> Version:
    """`models import`: a run of ours with its lineage, any Hugging Face folder (whole model or adapter) from another
    trainer, a bundle that `export` wrote, or data.

    Errors: NotFound, BadInput (no model in the folder, weights only as pickles).
    """
    if (folder / "manifest.json").exists() and (folder / "checkpoints").is_dir():
        return register(store, folder, name=name, which=which, by=by, reason=reason, type="imported")
    about = {"run": None, "source": str(folder.absolute()), **(lineage or {})}
    if store.shelf == "datasets" and folder.exists():
        rows: Files = {folder.name: folder} if folder.is_file() else folder
        called, why = name or folder.stem, reason or f"from {folder}"
        return store.publish(called, rows, by=by, reason=why, kind="dataset", lineage=about, type="imported")
    if not folder.is_dir():
        raise NotFound(f"{folder} does not exist", "a folder with a model", "the folder")
    if (folder / LAST).exists():
        return publish_bundle(store, folder, name or folder.name, by=by, reason=reason or f"from {folder}", type="imported")
    names = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}
    if not any(n.endswith((".safetensors", ".gguf")) for n in names):
        pickles = [n for n in names if n.endswith(UNSAFE)]
        found = f" (only {', '.join(pickles[:3])}, which can run code when loaded)" if pickles else ""
        raise BadInput(f"{folder} has no weights{found}", "*.safetensors or *.gguf", "the folder")
    adapter = names.get("adapter_config.json")
    if adapter is None and "config.json" not in names and not any(n.endswith(".gguf") for n in names):
        raise BadInput(f"{folder} has neither config.json nor adapter_config.json", "a Hugging Face folder", "the folder")
    base = None
    if adapter is not None:
        base = {"model": json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")}
    kept = {n: p for n, p in names.items() if not n.endswith(UNSAFE)}
    kind = "lora" if adapter is not None else "full" if "config.json" in names else "gguf"
    return store.publish(
        name or folder.name, kept, by=by, reason=reason or f"from {folder}", kind=kind, base=base, lineage=about, type="imported"
    )


def publish_bundle(
    store: Store, folder: Path, name: str, *, by: str | None = None, reason: str = "", type: str = "registered"
) -> Version:
    """What `export` wrote: its manifest's lineage, figures and checks come along. Errors: BadInput; StoreError where a file was changed since."""
    try:
        manifest = json.loads((folder / LAST).read_text(encoding="utf-8"))
        files = {str(entry["path"]): folder / str(entry["path"]) for entry in manifest["files"]}
        for entry in manifest["files"]:
            with (folder / entry["path"]).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != entry["sha256"]:
                    raise StoreError(
                        "corrupt",
                        f"{entry['path']} in {folder} was changed since its checks",
                        "the bundle as exported",
                        str(folder),
                    )
        fields = {key: manifest.get(key) or {} for key in ("lineage", "evaluation", "serving", "checks")}
        kind, base = manifest["kind"], manifest.get("base")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadInput(
            f"{folder / LAST} is no bundle's manifest ({problem})", "a folder that `export` wrote", str(folder)
        ) from problem
    return store.publish(name, files, by=by, reason=reason, kind=kind, base=base, type=type, **fields)


def into_store(
    settings: StoreSettings, folder: RunFolder, say: Callable[[str], None], bundle: Bundler | None = None
) -> Version | None:
    """A finished run's checkpoint (with `bundle`: what that makes of it) becomes a version, the alias points at it unless a check did not
    pass, the hook is called, retention has a look.

    Errors: StoreError (the run itself is whole, and how to register it later is said)."""
    if settings.register == "none":
        return None
    shelf: Shelf = "reward_models" if (folder.path / REWARD_MODEL).is_dir() else "models"
    store, name = open_store(settings.uri, shelf), settings.name or folder.path.name
    later = f"policyloop models import {folder.path} --name {name}"
    try:
        if bundle is None or settings.export is None:
            version = register(store, folder.path, name=name, which=settings.register)
        else:
            chosen = _chosen(folder.path, settings.register, folder.manifest()["config"])
            later = f"policyloop export {chosen.path / 'policy'} --format {settings.export} --register {name} --store {store.uri}"
            version = _bundled(store, folder, chosen, name, bundle)
        folder.event("register", int(version.lineage["step"]), version=str(version), store=store.uri)
        say(f"registered {version} in {store.uri}")
        failed = version.failed_checks()
        if failed:
            say(f"{version} may not be promoted, and no alias points at it: it did not pass {', '.join(failed)}")
        elif settings.alias is not None and store.state(name).after.aliases.get(settings.alias) != version.number:
            set_alias(store, version, settings.alias, by=actor(), reason=f"{settings.register} of {folder.path.name}")
        if settings.hook is not None:
            imported(settings.hook)(store, version)
        if settings.keep is not None:
            metric = f"{folder.manifest()['config']['data']['task']}.accuracy"
            swept = gc(store, name, settings.keep, by=actor(), metric=metric)
            for number in swept.announced:
                say(f"{name}@{number} is out of retention")
    except Problem as problem:
        say(f"the run is whole; to register it later: {later}")
        raise problem from None
    return version


def _bundled(store: Store, folder: RunFolder, chosen: Checkpoint, name: str, bundle: Bundler) -> Version:
    with tempfile.TemporaryDirectory(prefix=".export.", dir=folder.path) as work:  # beside the run: models may not fit into /tmp
        bundle(chosen.path / "policy", Path(work) / "bundle")
        return publish_bundle(store, Path(work) / "bundle", name, reason=f"step {chosen.step} of {folder.path.name}")


def imported(path: str) -> Callable[..., object]:
    """`package.module:function`. Errors: BadInput."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadInput(f"store.hook = {path} ({problem})", "package.module:function", "store.hook") from problem


def _chosen(run: Path, which: str, config: Mapping[str, Any]) -> Checkpoint:
    checkpoints = Checkpoints(run / "checkpoints", higher_is_better=config.get("evaluation", {}).get("better") != "lower")
    found = checkpoints.best() or checkpoints.latest() if which == "best" else checkpoints.latest()
    if which not in ("best", "last"):
        found = next((c for c in checkpoints.all() if str(c.step) == which.lstrip("0")), None)
    if found is None:
        there = ", ".join(str(c.step) for c in checkpoints.all()) or "none"
        raise NotFound(f"{run} has no whole checkpoint {which}", f"best, last or one of its steps ({there})", "the checkpoint")
    return found


def _files(run: Path, checkpoint: Checkpoint, base: str | None, trained: Path | None) -> dict[str, bytes | Path]:
    """What answers (or judges: `trained`): the policy without what only resuming needs, with the tokenizer and template it was trained with."""
    policy = {n.removeprefix("policy/"): checkpoint.path / n for n in checkpoint.names() if n.startswith("policy/")}
    if trained is not None:
        policy = {p.name: p for p in trained.iterdir() if p.is_file()}
    renderer = {p.name: p for p in (run / "renderer").glob("*") if p.is_file()}
    files: dict[str, bytes | Path] = {n: p for n, p in {**renderer, **policy}.items() if n not in NOT_SERVED}
    if base is not None and "adapter_config.json" in policy:
        config = json.loads(policy["adapter_config.json"].read_text(encoding="utf-8"))
        files["adapter_config.json"] = json.dumps({**config, "base_model_name_or_path": base}, indent=1, sort_keys=True).encode()
    return files


def _base_name(given: str, parent: str) -> str | None:
    """The adapter's base by a name that opens on another machine too; None where only a path is known. A run that went on with a stored
    adapter has that adapter's base."""
    if "@" in parent:
        try:
            found = stored(parent)
        except Problem:
            found = None
        if found is None:
            return None
        return (found[1].base or {}).get("model") if found[1].kind == "lora" else parent
    return None if "://" in given or Path(given).expanduser().exists() else given


def lineage_of(folder: RunFolder, step: int) -> dict[str, Any]:
    """Where the checkpoint of this step comes from, as every version and every bundle of it says."""
    manifest = folder.manifest()
    config = manifest["config"]
    learnt = next((row for row in folder.rows("events.jsonl") if row["kind"] == "sources"), {})
    terms = [fields for term in config["rewards"]["terms"] for fields in term.values() if isinstance(fields, Mapping)]
    return {
        "run": manifest["name"],
        "step": step,
        "seed": manifest["seed"],
        "config": config,
        "config_sha256": manifest["config_sha256"],
        "data": learnt.get("data", []),
        "parent": learnt.get("parent", config["model"]["base_model_path"]),
        "reward_models": sorted({str(f["model"]) for f in terms if f.get("model")}),
        "code": manifest["code"],
    }


def evaluation_of(folder: RunFolder, step: int) -> dict[str, Any]:
    """The held-out figures of this step: {suite: {metric: {value, n, interval}}}."""
    rows = [r for r in folder.rows("events.jsonl") if r["kind"] == "evaluation" and r["step"] == step]
    if not rows:
        return {}
    found = {k.removeprefix("eval/"): v for k, v in rows[-1].items() if k.startswith("eval/")}
    of: Callable[[str], dict[str, Any]] = lambda name: {  # noqa: E731
        "value": found[name],
        "n": found.get("n"),
        "interval": [found[f"{name}_low"], found[f"{name}_high"]] if f"{name}_low" in found else None,
    }
    return {str(folder.manifest()["config"]["data"]["task"]): {name: of(name) for name in FIGURES if found.get(name) is not None}}
