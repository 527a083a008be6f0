"""Groups to tensors: rows in prompt order, masks from the completions, never from token values."""

from __future__ import annotations

import math

from policyloop.rollout.batch import to_batch
from policyloop.types import Completion, Group, Prompt, Score


def completion(ids: tuple[int, ...], reason: str = "stop", mask: tuple[int, ...] = ()) -> Completion:
    return Completion((7, 8), ids, tuple(-0.5 for _ in ids), reason, "r#0", "", mask)  # type: ignore[arg-type]


def test_ragged_groups() -> None:
    """C01 with pad = eos = 2: the sampled 2 is a trained token, the padding is not."""
    prompt = Prompt.make("t", "q")
    a = Group("a", prompt, (completion((33, 2)), completion((5,), "length")), (Score(1.0, metric=1.0), Score(None)))
    b = Group("b", prompt, (completion((4, 9, 9, 2), mask=(1, 0, 0, 1)),), (Score(0.25),), (False,))
    batch, tokens = to_batch([a, b])
    assert batch.mask_NT.int().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 1]]
    assert batch.length_N.tolist() == [2, 1, 2]
    assert batch.group_N.tolist() == [0, 0, 1]
    assert batch.keep_N.tolist() == [True, True, False]
    assert batch.finished_N.tolist() == [True, False, True]
    assert batch.rewards_N[0] == 1.0 and math.isnan(batch.rewards_N[1]) and batch.rewards_N[2] == 0.25
    assert math.isnan(batch.metric_N[2]) and math.isnan(batch.rollout_logprobs_NT[0, 2])
    assert [t.completion for t in tokens] == [(33, 2), (5,), (4, 9, 9, 2)] and tokens[2].group == 1


def test_rows_cut_every_field_alike() -> None:
    """D12: advantages and log-probs can never be split differently."""
    prompt = Prompt.make("t", "q")
    groups = [Group(str(i), prompt, (completion((i + 3,)),), (Score(float(i)),)) for i in range(4)]
    batch, _ = to_batch(groups)
    part = batch.rows([3, 1])
    assert part.rewards_N.tolist() == [3.0, 1.0] and part.group_N.tolist() == [3, 1] and part.mask_NT.shape == (2, 1)
