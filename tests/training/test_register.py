"""From a run to the store: the best checkpoint with its lineage, opened again as a model; nothing is registered without a `store` table."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from policyloop.errors import BadInput, No, NotFound, StoreError
from policyloop.evaluation.model import open_model
from policyloop.models.reward import open_reward_model
from policyloop.recipe import load, tree_of
from policyloop.run import start
from policyloop.store import open_store
from policyloop.store.log import check_chain
from policyloop.store.moves import promote
from policyloop.tasks import load_task
from policyloop.training.checkpoint import Checkpoints
from policyloop.training.folder import RunFolder
from policyloop.training.register import bring_in, into_store, register


def recipe(place: Path, **store: Any) -> Any:
    tree = {
        "model": {"base_model_path": "tiny", "lora": {"r": 2}},
        "data": {"task": "tiny_arithmetic"},
        "rl_strategy": {"type": "sft"},
        "training": {"steps": 2, "prompts_per_step": 4, "lr": 1e-3, "threads": 1, "precision": "fp32", "keep_last": 2},
        "rollout": {"max_new_tokens": 4},
        "evaluation": {"every": 1, "prompts": 4},
        "store": {"uri": str(place / "store"), **store},
    }
    return load(tree)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLICYLOOP_CACHE", str(place / "cache"))
        start(recipe(place, name="answers"), place / "runs" / "first", say=lambda line: None)
    return place


def test_the_best_checkpoint_is_registered_with_its_lineage(place: Path) -> None:
    store = open_store(str(place / "store"))
    (version,) = store.versions("answers")
    best = Checkpoints(place / "runs/first/checkpoints").best()
    assert best is not None
    manifest = json.loads((place / "runs/first/manifest.json").read_text())
    lineage = version.lineage
    assert (lineage["run"], lineage["step"], lineage["seed"]) == ("first", best.step, 0)
    assert lineage["config"] == manifest["config"] and lineage["config_sha256"] == manifest["config_sha256"]
    assert lineage["code"]["policyloop"] and lineage["parent"] == "tiny"
    ids = sorted(p.id for p in load_task(recipe(place).data, 0).train())
    assert lineage["data"][0]["sha256"] == hashlib.sha256("\n".join(ids).encode()).hexdigest()
    accuracy = version.evaluation["tiny_arithmetic"]["accuracy"]
    assert accuracy["value"] == best.score and accuracy["n"] == 4 and len(accuracy["interval"]) == 2
    assert (version.kind, version.base) == ("lora", {"model": "tiny"})
    assert store.state("answers").candidate == 1 and check_chain(store.events("answers"), "answers") == []


def test_the_version_answers_as_the_checkpoint_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_STORE", str(place / "store"))
    monkeypatch.setenv("POLICYLOOP_CACHE", str(place / "cache"))
    with open_model("answers@candidate") as stored:
        assert stored.version == "answers@1"
        assert json.loads((stored.path / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
        digest = stored.engine.status().digest
    best = Checkpoints(place / "runs/first/checkpoints").best()
    assert best is not None
    with open_model(str(best.path / "policy")) as checkpoint:
        assert checkpoint.engine.status().digest == digest


def test_a_child_knows_its_parent_by_number(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_STORE", str(place / "store"))
    monkeypatch.setenv("POLICYLOOP_CACHE", str(place / "cache"))
    child = load({**tree_of(recipe(place, name="answers", register="last")), "model": {"base_model_path": "answers@candidate"}})
    start(child, place / "runs" / "second", say=lambda line: None)
    version = open_store(str(place / "store")).version("answers", 2)
    assert version.lineage["parent"] == "answers@1" and version.lineage["step"] == 2
    assert version.base == {"model": "tiny"}  # the same adapter went on: its base is its parent's
    with open_model("answers@2") as opened:
        assert opened.version == "answers@2"


def test_registering_again_changes_nothing(place: Path) -> None:
    store = open_store(str(place / "store"))
    before = store.state("answers").n
    assert register(store, place / "runs/first", name="answers").number == 1
    assert store.state("answers").n == before
    with pytest.raises(NotFound, match=r"whole checkpoint 7.*\(1, 2\)"):
        register(store, place / "runs/first", which="7")


def test_a_store_that_is_not_there_leaves_the_run_whole(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    said: list[str] = []
    with pytest.raises(StoreError) as caught:
        start(recipe(tmp_path / "file"), tmp_path / "run", say=said.append)
    assert caught.value.fault in ("missing", "permission")
    assert said[-1] == f"the run is whole; to register it later: policyloop models import {tmp_path / 'run'} --name run"
    assert Checkpoints(tmp_path / "run/checkpoints").latest() is not None


def test_a_run_ends_and_is_registered_when_the_target_is_reached(tmp_path: Path) -> None:
    wanted = load(tree_of(recipe(tmp_path)), ["training.steps=9", "evaluation.metric=length_mean", "evaluation.target=0.5"])
    said: list[str] = []
    start(wanted, tmp_path / "run", say=said.append)
    assert any(line.startswith("stopped early: length_mean") and line.endswith("reached the target 0.5") for line in said)
    assert open_store(str(tmp_path / "store")).version("run", 1).lineage["step"] == 1
    with pytest.raises(BadInput, match="nothing is evaluated"):
        load({"model": {"base_model_path": "tiny"}, "evaluation": {"target": 0.5}})


def exported(place: Path, *overrides: str, **store: Any) -> Any:
    small = ["export.parity.prompts=3", "export.parity.max_new_tokens=6"]
    return load(tree_of(recipe(place, name="answers", **store)), [*small, "training.steps=1", *overrides])


def test_what_is_registered_can_be_a_bundle_that_passed_its_parity_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    start(exported(tmp_path, export="merged"), tmp_path / "run", say=said.append)
    store = open_store(str(tmp_path / "store"))
    (version,) = store.versions("answers")
    assert version.kind == "full" and version.checks["parity"]["passed"] and "parity holds" in said
    plain = register(store, tmp_path / "run", name="plain")  # the same checkpoint as it is
    assert (version.lineage, version.evaluation) == (plain.lineage, plain.evaluation)
    assert version.serving["parser"]["task"] == "tiny_arithmetic" and store.state("answers").candidate == 1
    assert not list((tmp_path / "run").glob(".export.*"))
    with open_model("answers@candidate") as opened:
        assert opened.version == "answers@1"


def test_a_bundle_beyond_its_limits_is_registered_and_not_promotable(tmp_path: Path) -> None:
    said: list[str] = []
    settings = exported(tmp_path, "export.parity.max_kl=0", "export.parity.max_logprob=0", export="int4")
    start(settings, tmp_path / "run", say=said.append)
    store = open_store(str(tmp_path / "store"))
    (version,) = store.versions("answers")
    assert version.failed_checks() == ["parity"] and store.state("answers").candidate is None
    assert "answers@1 may not be promoted, and no alias points at it: it did not pass parity" in said
    with pytest.raises(No, match="did not pass parity"):
        promote(store, version, by="ann", reason="hurry", report={"verdict": "SHIP"})


def test_a_reward_model_has_no_bundle() -> None:
    with pytest.raises(BadInput, match=r"store\.export is set and a reward model is trained"):
        load(Path(__file__).parents[2] / "recipes/tiny-reward-model.yaml", ["store.export=int8"])


def test_an_export_that_fails_leaves_the_run_whole(place: Path, tmp_path: Path) -> None:
    def broken(policy: Path, to: Path) -> None:
        raise BadInput("torchao is not installed", "pip install", "the installation")

    run, said, settings = place / "runs/first", list[str](), recipe(tmp_path, name="answers", export="int8").store
    with pytest.raises(BadInput, match="torchao"):
        into_store(settings, RunFolder(run), said.append, broken)
    best = Checkpoints(run / "checkpoints").best()
    assert best is not None
    later = f"policyloop export {best.path / 'policy'} --format int8 --register answers --store {tmp_path / 'store'}"
    assert said == [f"the run is whole; to register it later: {later}"] and open_store(str(tmp_path / "store")).names() == []


def test_without_the_table_nothing_is_registered() -> None:
    assert load({"model": {"base_model_path": "tiny"}}).store is None
    assert load({"model": {"base_model_path": "tiny"}, "store": {}}).store is not None


HOOK = """
from policyloop.store import moves

def approve(store, version):
    moves.promote(store, version, by="hook", reason="the hook says so", force=True)
"""


def test_a_hook_may_promote(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_hook.py").write_text(HOOK)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = recipe(tmp_path, name="hooked", hook="my_hook:approve").store
    into_store(settings, RunFolder(place / "runs/first"), say=lambda line: None)
    assert open_store(str(tmp_path / "store")).state("hooked").stable == 1
    with pytest.raises(BadInput, match=r"store\.hook = my_hook:nobody"):
        into_store(recipe(tmp_path, hook="my_hook:nobody").store, RunFolder(place / "runs/first"), say=lambda line: None)


def test_a_reward_model_goes_to_its_own_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    settings = load(
        Path(__file__).parents[2] / "recipes/tiny-reward-model.yaml",
        [
            "model.base_model_path=tiny",
            "data.options.pairs=400",
            "evaluation.prompts=8",
            "training.steps=1",
            "training.warmup_steps=0",
            "training.threads=1",
            f"store.uri={tmp_path / 'store'}",
            "store.name=judge",
        ],
    )
    start(settings, tmp_path / "rm", say=lambda line: None, force=True)
    assert open_store(str(tmp_path / "store")).names() == []
    shelf = open_store(str(tmp_path / "store"), "reward_models")
    (version,) = shelf.versions("judge")
    assert (version.kind, version.lineage["run"]) == ("reward_model", "rm")
    assert open_reward_model(shelf.fetch(version)).about["run"] == "rm"


def test_a_bundle_brings_its_checks_and_only_while_it_is_what_was_checked(tmp_path: Path) -> None:
    bundle, store = tmp_path / "bundle", open_store(str(tmp_path / "store"))
    bundle.mkdir()
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    for name, data in files.items():
        (bundle / name).write_bytes(data)
    listed = [{"path": n, "size": len(d), "sha256": hashlib.sha256(d).hexdigest(), "role": "weights"} for n, d in files.items()]
    manifest = {"schema": 1, "kind": "quantised", "base": {"source": "answers@1"}, "files": listed, "lineage": {"run": "r"}}
    manifest |= {"serving": {"eos_ids": [2]}, "checks": {"parity": {"passed": False, "kl": 0.4}}}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    version = bring_in(store, bundle, name="answers")
    assert (version.kind, version.base, version.serving) == ("quantised", {"source": "answers@1"}, {"eos_ids": [2]})
    assert {f.path for f in version.files} == set(files)
    with pytest.raises(No, match="did not pass parity"):
        promote(store, version, by="ann", reason="hurry", report={"verdict": "SHIP"})
    (bundle / "model.safetensors").write_bytes(b"other")
    with pytest.raises(StoreError, match=r"model\.safetensors in .* was changed since its checks"):
        bring_in(store, bundle, name="answers")
