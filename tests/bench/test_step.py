"""One step of the benchmark is a real step: forced lengths, weights that move and are published."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyloop.bench import Shape
from policyloop.bench.step import Step, figures, linear_weights
from policyloop.models.tiny import make_tiny
from policyloop.tasks import DataSettings, load_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("bench") / "tiny")


def test_a_step_samples_forced_lengths_learns_and_publishes(folder: Path) -> None:
    prompts = load_task(DataSettings(task="tiny_arithmetic"), 0).train()
    step = Step(str(folder), Shape(prompts=2, group=4, tokens=8, kept=2, rounds=1), prompts)
    before = step.engine.status().digest
    parts = step()
    assert (parts.new, parts.trained) == (2 * 4 * 8, 2 * 2 * 8)
    assert step.engine.status().digest != before
    assert step.engine.status().version == "bench#1"
    assert parts.total_s == pytest.approx(parts.rollout_s + parts.update_s + parts.publish_s)


def test_sampling_alone_needs_no_policy(folder: Path) -> None:
    prompts = load_task(DataSettings(task="tiny_arithmetic"), 0).train()
    step = Step(str(folder), Shape(prompts=2, group=2, tokens=4), prompts, update=False)
    assert step.trainer is None
    assert step().new == 2 * 2 * 4


def test_weights_of_layers_and_head_are_told_apart(folder: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    body, head = linear_weights(folder)
    assert head == config.vocab_size * config.hidden_size
    h, m, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    assert body == layers * (4 * h * h + 3 * h * m + 2 * h) + h  # as many key and value heads as query heads; norms


def test_figures_divide_by_what_was_measured(folder: Path) -> None:
    from policyloop.bench.floor import Rates
    from policyloop.bench.step import Parts

    prompts = load_task(DataSettings(task="tiny_arithmetic"), 0).train()
    step = Step(str(folder), Shape(prompts=2, group=4, tokens=8), prompts, update=False)
    found = figures(step, Parts(2.0, 3.0, 1.0, 5.0, new=64, once=10, trained=64), Rates(1e9, 1e9))
    assert (found["step_s"], found["samples_per_s"], found["rollout_tokens_per_s"]) == (6.0, 8 / 6, 32.0)
