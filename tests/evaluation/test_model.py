"""MODEL opens into an engine: whole folders, adapters of a run, with the tokenizer and template they were trained with."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch

from policyloop.engine import Request
from policyloop.errors import NotFound
from policyloop.evaluation.model import open_model, version_of
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.policy import load_policy
from policyloop.models.tiny import make_tiny
from policyloop.types import Message, Prompt, SamplingParams

QUESTION = Prompt.make("t", [Message("user", "9-3+2-6=")])
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose adapter is far from its base, trained with a template of its own."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    template = folder.parent / "shout.jinja"
    turn = "check {{ m['content'] }}{%- if m['role'] == 'assistant' -%}{{ eos_token }}{%- endif -%}"
    template.write_text("{%- for m in messages -%}" + turn + "{%- endfor -%}{%- if add_generation_prompt -%};{%- endif -%}")
    settings = ModelSettings(
        base_model_path=str(base), lora=LoraSettings(r=4, target_modules="all-linear"), template=str(template)
    )
    policy = load_policy(settings, "fp32", "cpu", seed=0)
    for name, parameter in policy.trainable():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(len(name)))
    checkpoint = folder / "checkpoints" / "00000003"
    policy.save(checkpoint / "policy")
    (checkpoint / "manifest.json").write_text(json.dumps({"step": 3, "score": 0.5}))
    return folder


def greedy(name: str, template: str | None = None) -> tuple[int, ...]:
    with open_model(name, template=template) as model:
        (completion,) = model.engine.run([Request("q", model.renderer.prompt_ids(QUESTION), GREEDY)])
        assert completion.policy_version == model.version
        return completion.token_ids


def test_a_run_opens_as_base_and_adapter_with_its_own_template(base: Path, run: Path) -> None:
    with open_model(str(run)) as model:
        assert model.version == "mine#3" and model.path == run / "checkpoints/00000003/policy"
        assert model.renderer.decode(model.renderer.prompt_ids(QUESTION)).startswith("check")
    assert greedy(str(run)) == greedy(str(run / "checkpoints/00000003/policy"))
    assert greedy(str(run)) != greedy(str(base), str(run.parent / "shout.jinja"))  # the adapter is there


def test_a_template_may_be_asked_for(base: Path) -> None:
    with open_model(str(base), template="plain") as model:
        assert model.version == str(base) and model.renderer.decode(model.renderer.prompt_ids(QUESTION)).startswith("9-3+2-6=")


def test_leaving_frees_the_weights(base: Path) -> None:
    with open_model(str(base), template="plain") as model:
        weights = weakref.ref(model.engine.model)  # type: ignore[attr-defined]
        assert weights() is not None
    del model
    gc.collect()
    assert weights() is None


def test_versions() -> None:
    assert version_of("run://a@7", Path("runs/a/checkpoints/00000007/policy")) == "a#7"
    assert version_of("smollm2-135m-instruct", Path("/cache/smollm2-135m-instruct")) == "smollm2-135m-instruct"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no model"):
        open_model(str(tmp_path))
