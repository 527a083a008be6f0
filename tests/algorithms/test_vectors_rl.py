"""Other people's reference numbers for critics, controllers, dynamic sampling and the algorithms built on them; and what is not copied of them."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policyloop.algorithms import (
    CISPO,
    DAPO,
    DRGRPO,
    GFPO_PAPER,
    GRPO,
    GSPO,
    GSPO_TOKEN,
    PPO,
    REINFORCE,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    RLOO,
    RLOO_SEQUENCE,
    PolicyGradient,
    policy_loss,
)
from policyloop.algorithms.gfpo import excess_length_reduction
from policyloop.algorithms.parts.advantage import GAE, GroupNorm, ReturnToGo, token_rewards, whiten
from policyloop.algorithms.parts.controller import AdaptiveKL, moved
from policyloop.algorithms.parts.correction import Rejection
from policyloop.algorithms.parts.difficulty import AdaptiveDifficulty
from policyloop.algorithms.parts.filter import DropConstant, TopK
from policyloop.algorithms.parts.kl import KL, estimate
from policyloop.algorithms.parts.schedule import Decay, Linear
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.value import ValueLoss
from policyloop.algorithms.parts.weight import Constant, SequenceMean
from policyloop.algorithms.plain import batch_of
from policyloop.algorithms.policy_gradient import weighted
from policyloop.models.head import Head, TokenLogprobs
from policyloop.rewards.compose import length_penalty
from policyloop.types import Completion, Group, Progress, Prompt, Score

_spec = importlib.util.spec_from_file_location("vectors", Path(__file__).parent / "vectors.py")
assert _spec is not None and _spec.loader is not None
V = importlib.util.module_from_spec(_spec)
sys.modules.setdefault("vectors", V)
_spec.loader.exec_module(V)


def group(metrics: list[float], lengths: list[int] | None = None, values: list[float] | None = None) -> Group:
    lengths = lengths or [5] * len(metrics)
    completions = tuple(Completion((1,), (5,) * n, (0.0,) * n, "stop", "r#0", "") for n in lengths)
    rewards = values or metrics
    return Group(
        "g", Prompt.make("t", "q"), completions, tuple(Score(v, metric=m) for v, m in zip(rewards, metrics, strict=True))
    )


def loss_of(c: dict[str, Any], algorithm: PolicyGradient, **more: Tensor) -> None:
    x = V.inputs(c)
    mask, logprobs = x["mask"].bool(), x["logprobs"].requires_grad_()
    advantages = x["advantages"] if "advantages" in x else x["advantages_seq"]
    loss = policy_loss(algorithm, logprobs, x["old_logprobs"], advantages, mask, **more)
    loss.backward()
    V.close(c, loss.detach(), "loss")
    V.close(c, logprobs.grad, "grad_logprobs", mask)


# --- the named compositions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "id", "algorithm"),
    [
        ("gspo", "gspo_verl_paper_eps", GSPO),
        ("gspo", "gspo_openrlhf_paper_eps", GSPO_TOKEN),
        ("cispo", "cispo_trl_abs_upper_5", CISPO),
        ("trl_grpo_loss", "trl_dapo_clip_higher", replace(DAPO, surrogate=Clip(low=0.2, high=0.28))),
        ("policy_loss", "dual_clip_verl", PPO),
        ("policy_loss", "dual_clip_nemo", GRPO),
        ("policy_loss", "ppo_clip_verl_seq-mean-token-sum_fully_masked_row", RLOO),
        ("policy_loss", "rloo_loss_trl_sequence_ratio", RLOO_SEQUENCE),
        ("policy_loss", "drgrpo_loss_official_constant", replace(DRGRPO, weight=Constant(max_tokens=16))),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_compositions_as_they_stand_in_the_table(file: str, id: str, algorithm: PolicyGradient) -> None:
    """The values of ALGORITHMS themselves, not parts put together here."""
    loss_of(V.case(file, id), algorithm)


def test_off_policy_sequences_are_masked() -> None:
    c = V.case("trl_grpo_loss", "trl_off_policy_sequence_mask")
    algorithm = replace(DAPO, surrogate=Clip(), off_policy_limit=c["params"]["off_policy_mask_threshold"])
    loss_of(c, algorithm, rollout_logprobs=V.inputs(c)["sampling_logprobs"])


def test_gradient_accumulation_over_two_halves() -> None:
    c = V.case("trl_grpo_loss", "trl_dapo_grad_accum_2")
    x = V.inputs(c)
    loss = policy_loss(replace(GRPO, surrogate=Clip()), x["logprobs"], x["old_logprobs"], x["advantages_seq"], x["mask"].bool())
    V.close(c, loss, "summed")


# --- advantages, returns, values --------------------------------------------------------------------------------------------


def openrlhf(id: str) -> tuple[dict[str, Any], dict[str, Tensor], Any]:
    c = V.case("group_advantages", id)
    x = V.inputs(c)
    batch = batch_of(
        x["mask"].bool(),
        x["rewards"],
        x["group_ids"].long(),
        old_logprobs_NT=x["old_logprobs"],
        ref_logprobs_NT=x["ref_logprobs"],
        values_NT=x["values"],
    )
    return c, x, batch


@pytest.mark.parametrize(
    ("id", "advantage"),
    [
        ("openrlhf_rloo", ReturnToGo(whiten=False, baseline="leave_one_out")),
        ("openrlhf_dr_grpo", ReturnToGo(whiten=False, baseline="group")),
        ("openrlhf_gae", GAE(whiten=False)),
    ],
)
def test_openrlhf_estimators(id: str, advantage: Any) -> None:
    """Baseline on the scalar reward, KL token by token, then return-to-go; GAE compared before its (biased) whitening."""
    c, x, batch = openrlhf(id)
    kl = KL(coef=c["params"]["kl_coef"], estimator="k1", where="reward")
    mask = x["mask"].bool()
    done = replace(PPO if isinstance(advantage, GAE) else REINFORCE_PP, advantage=advantage, kl=kl).prepare(batch)
    if done.returns_NT is not None:
        V.close(c, done.returns_NT, "returns", mask)
        white = done.advantages_NT - done.advantages_NT[mask].mean()
        white = white * torch.rsqrt(done.advantages_NT[mask].var(correction=0).clamp_min(1e-8))
        V.close(c, white, "advantages", mask)
    else:
        V.close(c, done.advantages_NT, "advantages", mask)


def test_rloo_with_the_kl_in_a_clipped_reward() -> None:
    """R is clipped first (rewards.range_control), then β Σ k1 comes off, then the others' mean."""
    c = V.case("group_advantages", "rloo_trl_kl_in_reward_clip")
    x, p = V.inputs(c), c["params"]
    batch = batch_of(
        x["mask"].bool(),
        x["rewards"].clamp(*p["reward_clip_range"]),
        x["group_ids"].long(),
        old_logprobs_NT=x["old_logprobs"],
        ref_logprobs_NT=x["ref_logprobs"],
    )
    done = replace(RLOO, kl=replace(RLOO.kl, coef=p["beta"])).prepare(batch)
    sums = done.advantages_NT.sum(1) / x["mask"].sum(1).clamp_min(1)
    V.close(c, sums[x["mask"].sum(1) > 0], "advantages_seq", None if bool((x["mask"].sum(1) > 0).all()) else x["mask"].sum(1) > 0)


def test_reinforce_pp_baseline_is_group_mean_then_whitening() -> None:
    c = V.case("group_advantages", "reinforce_pp_baseline_verl")
    x = V.inputs(c)
    done = replace(REINFORCE_PP_BASELINE, kl=None).prepare(batch_of(x["mask"].bool(), x["rewards"], x["group_ids"].long()))
    V.close(c, done.advantages_NT, "advantages", x["mask"].bool())


def test_vapo_s_decoupled_lambdas() -> None:
    c = V.case("gae", "gae_nemo_vapo_decoupled")
    x, p = V.inputs(c), c["params"]
    mask = x["mask"].bool()
    advantage = GAE(lam=p["lam"], lam_value=p["lam_value"], length_alpha=p["alpha"])
    ppo = replace(PPO, advantage=advantage, kl=KL(coef=p["kl_coef"], estimator="k1", where="reward"))
    done = ppo.prepare(
        batch_of(
            mask, x["reward"], None, old_logprobs_NT=x["old_logprobs"], ref_logprobs_NT=x["ref_logprobs"], values_NT=x["values"]
        )
    )
    V.close(c, done.returns_NT, "returns", mask)
    V.close(c, done.advantages_NT, "advantages", mask)


def test_a_cut_off_completion_may_go_on_with_the_critic_s_value() -> None:
    """γ = λ = 1, values 0, V(after) = 0.5: the return of every token is R + 0.5 on the cut-off row, R on the other."""
    batch = batch_of(torch.ones(2, 3), torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), values_NT=torch.zeros(2, 3))
    batch.finished_N, batch.after_N = torch.tensor([False, True]), torch.tensor([0.5, 0.5])
    GAE(lam=1.0, whiten=False, bootstrap_truncated=True)(batch)
    assert batch.returns_NT.tolist() == [[1.5] * 3, [1.0] * 3]
    GAE(lam=1.0, whiten=False)(batch)
    assert batch.returns_NT.tolist() == [[1.0] * 3] * 2


def test_whitened_rewards_keep_their_mean() -> None:
    x = torch.tensor([[0.0, 2.0], [4.0, 6.0]], dtype=torch.float64)
    got = whiten(x, torch.ones(2, 2, dtype=torch.bool), shift_mean=False)
    assert float(got.mean()) == pytest.approx(3.0) and float(got.std()) == pytest.approx(1.0, abs=1e-6)


def test_process_rewards() -> None:
    """Two answers with steps (1, 0) and (1, 1): mean 0.75, std 0.5 (ddof 1) -> z = 0.5, -1.5 | 0.5, 0.5, summed from the end."""
    batch = batch_of(torch.ones(2, 4), torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    batch.step_rewards_NT = torch.full((2, 4), torch.nan, dtype=torch.float64)
    batch.step_rewards_NT[0, 1], batch.step_rewards_NT[0, 3] = 1.0, 0.0
    batch.step_rewards_NT[1, 0], batch.step_rewards_NT[1, 3] = 1.0, 1.0
    from policyloop.algorithms.parts.advantage import ProcessNorm

    got = ProcessNorm(eps=0.0)(batch).tolist()
    assert got[0] == pytest.approx([-1.0, -1.0, -1.5, -1.5]) and got[1] == pytest.approx([1.0, 0.5, 0.5, 0.5])


def test_ppo_s_total_of_trl() -> None:
    """Its value mask has one position more per unfinished row: policy and value terms checked under their own masks."""
    c = V.case("value_loss", "ppo_total_trl")
    x, p = V.inputs(c), c["params"]
    mask, value_mask = x["mask"].bool(), x["value_mask"].bool()
    logprobs, values = x["logprobs"].requires_grad_(), x["values"].requires_grad_()
    policy = policy_loss(
        replace(PPO, surrogate=Clip(low=p["cliprange"], high=p["cliprange"])), logprobs, x["old_logprobs"], x["advantages"], mask
    )
    part = ValueLoss(clip=p["cliprange_value"])(values, x["old_values"], x["returns"])
    value = weighted(part, value_mask.double() / value_mask.sum(), value_mask)
    total = policy + p["vf_coef"] * value
    total.backward()
    V.close(c, policy.detach(), "pg_loss")
    V.close(c, total.detach(), "loss")
    V.close(c, logprobs.grad, "grad_logprobs", mask)
    V.close(c, values.grad, "grad_values", value_mask)


def test_the_score_is_on_the_last_token_not_one_behind() -> None:
    c = V.case("gae", "gae_trl_ppo_p1_DIVERGENCE")
    x = V.inputs(c)
    last = x["sequence_lengths_last_index"].long()
    mask = torch.arange(x["values"].shape[1])[None] <= last[:, None]
    penalty = c["params"]["kl_coef"] * estimate(x["logprobs"], x["ref_logprobs"], mask, "k1")
    got = token_rewards(batch_of(mask, x["reward"]), penalty)
    behind = V.expected(c, "token_level_rewards")
    short = last + 1 < mask.shape[1]
    assert short.any() and not torch.allclose(got[short], behind[short])
    moved = got.gather(1, last[:, None])[:, 0][short] - x["reward"][short]
    torch.testing.assert_close(moved, -penalty.gather(1, last[:, None])[:, 0][short].double(), atol=1e-9, rtol=1e-9)


def test_kl_in_the_reward() -> None:
    c = V.case("kl", "kl_in_reward_verl")
    x = V.inputs(c)
    mask = x["mask"].bool()
    got = x["token_level_scores"] - c["params"]["beta"] * estimate(x["old_logprobs"], x["ref_logprobs"], mask, "k1")
    V.close(c, got, "token_level_rewards", mask)


def test_k3_with_a_score_term_has_the_gradient_of_k3_st() -> None:
    c = V.case("kl", "kl_nemo_k3_with_score_function_term")
    x = V.inputs(c)
    mask, logprobs = x["mask"].bool(), x["logprobs"].requires_grad_()
    got = estimate(logprobs, x["ref_logprobs"], mask, "k3_st")
    got.sum().backward()
    V.close(c, got.detach(), "kl", mask)
    V.close(c, logprobs.grad, "grad_of_masked_sum", mask)


# --- controllers ------------------------------------------------------------------------------------------------------------


def test_adaptive_kl_controller() -> None:
    c = V.case("kl", "adaptive_kl_controller")
    p = c["params"]
    kl = KL(coef=p["init"], estimator="k1", where="reward", target_per_sequence=p["target"], horizon=p["horizon"])
    controller = kl.controllers()["coef"]
    assert isinstance(controller, AdaptiveKL)
    seen = []
    for x in c["inputs"]["kl_sequence"]:
        controller.observe(
            {"kl_ref/per_sequence": x, "kl_ref/per_token": 99.0, "groups/count": 16.0, "groups/size_mean": p["n_steps"] / 16}
        )
        seen.append(controller.value)
    assert seen == pytest.approx(c["expected"]["beta_after_each"], rel=1e-9)
    again = AdaptiveKL(1.0, p["target"], p["horizon"], "per_sequence")
    again.load(controller.state())
    assert again.value == controller.value


def test_adaptive_difficulty_stream() -> None:
    """Algorithm 2 with the paper's strict comparison: the digest learns a prompt's mean before it is asked about it."""
    c = V.case("gfpo", "gfpo_adaptive_difficulty_stream")
    p = c["params"]
    part = AdaptiveDifficulty(**{k: p[k] for k in ("k_very_hard", "k_hard", "k_medium", "k_easy", "ready_after")}, ranks="strict")
    means = V.inputs(c).get("mean_rewards", c["inputs"]["mean_rewards"])
    means = means.tolist() if isinstance(means, Tensor) else means
    controller, found = part.controller(), []
    for i, mean in enumerate(means):
        if i == 30:  # a checkpoint in between changes nothing
            state, controller = controller.state(), part.controller()
            controller.load(state)
        one = group([mean])
        controller.meet([one])
        found.append(controller.value.k(controller.value.bucket(one)))
    want = c["expected"]["k_exact"]
    assert found == (want if isinstance(want, list) else V.expected(c, "k_exact").long().tolist())


def test_unsolved_prompts_are_very_hard_however_many_there_are() -> None:
    """60 % of the means are 0: strict comparison calls them medium, mid-ranks never do."""
    stream = [group([0.0] * 4)] * 6 + [group([1.0, 0, 0, 0])] * 3 + [group([1.0] * 4)]
    for ranks, unsolved in (("strict", "medium"), ("mid", "very_hard")):
        controller = AdaptiveDifficulty(ready_after=10, ranks=ranks).controller()
        for _ in range(4):
            controller.meet(stream)
        assert controller.value.bucket(stream[0]) == unsolved and controller.value.bucket(stream[-1]) == "easy"


def test_beyond_ten_thousand_prompts_a_digest_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policyloop.algorithms.parts.difficulty.EXACT", 200)
    controller = AdaptiveDifficulty(ready_after=10).controller()
    means = [(i * 37 % 101) / 100 for i in range(606)]
    for mean in means:
        controller.meet([group([mean])])
    assert controller.seen.digest is not None and len(controller.seen) == len(means)
    for q in (0.25, 0.5, 0.75):
        assert controller.seen.quantile(q) == pytest.approx(q, abs=0.02) and controller.seen.midrank(q) == pytest.approx(
            q, abs=0.02
        )
    again = AdaptiveDifficulty(ready_after=10).controller()
    again.load(controller.state())
    assert again.seen.midrank(0.3) == controller.seen.midrank(0.3) and again.ready


# --- filters, lengths -------------------------------------------------------------------------------------------------------


def test_dynamic_sampling_reads_the_raw_metric_only() -> None:
    """All wrong, different shaped rewards (lengths): dropped. A hit among them, equal rewards: kept."""
    assert DropConstant()(group([0.0] * 4, values=[-0.1, -0.2, -0.3, -0.4])) == (False,) * 4
    assert DropConstant()(group([1.0, 0, 0, 0], values=[0.5] * 4)) == (True,) * 4


def test_each_group_is_filtered_on_its_own_completions() -> None:
    c = V.case("gfpo", "gfpo_trl_multigroup_BUG_DIVERGENCE")
    x = V.inputs(c)
    ids, kept = x["group_ids"].long(), []
    for g in (0, 1):
        rows = (ids == g).nonzero()[:, 0].tolist()
        marks = TopK(k=c["params"]["k"])(group(x["rewards"][rows].tolist(), x["lengths"][rows].long().tolist()))
        kept += [n for n, mark in zip(rows, marks, strict=True) if mark]
        shortest = sorted(rows, key=lambda n: (float(x["lengths"][n]), n))[: c["params"]["k"]]
        assert sorted(kept[-len(shortest) :]) == sorted(shortest)
    assert sorted(kept) != sorted(V.expected(c, "kept_indices").long().tolist())


def test_shift_min_stops_long_wrong_answers_from_ranking_first() -> None:
    wrong = group([0.0, 0, 0], lengths=[10, 100, 50], values=[-1.0, -1.0, -0.5])
    assert TopK(k=2, metric="token_efficiency")(wrong) == (False, True, True)
    assert TopK(k=2, metric="token_efficiency", shift_min=True)(wrong) == (True, False, True)


def test_excess_length_reduction() -> None:
    c = V.case("gfpo", "gfpo_excess_length_reduction")
    x = {k: float(v["data"]) if isinstance(v, dict) else float(v) for k, v in c["inputs"].items()}
    want = c["expected"]["elr"]
    assert excess_length_reduction(x["l_sft"], x["l_grpo"], x["l_gfpo"]) == pytest.approx(
        float(want["data"] if isinstance(want, dict) else want)
    )


def test_rejection_of_rows_by_mean_k3() -> None:
    c = V.case("importance_sampling", "rs_verl_seq_mean_k3")
    x = V.inputs(c)
    V.close(c, Rejection(limit=c["params"]["threshold"])(x["old_logprobs"], x["rollout_logprobs"], x["mask"].bool()), "kept_mask")


def test_soft_overlong_is_the_length_penalty_at_another_threshold() -> None:
    """DAPO eq. 13 with L_cache = (1 - threshold) L_max, and capped: verl's uncapped form is not copied."""
    for id in ("overlong_trl", "overlong_openrlhf"):
        c = V.case("dapo_extras", id)
        p = c["params"]
        lengths = c["inputs"]["lengths"]
        lengths = V.tensor(lengths).tolist() if isinstance(lengths, dict) else lengths
        want = c["expected"]["penalty"]
        want = V.tensor(want).tolist() if isinstance(want, dict) else want
        assert penalties(lengths, p["l_max"], 1 - p["l_cache"] / p["l_max"]) == pytest.approx(want)
    c = V.case("dapo_extras", "overlong_verl_uncapped_DIVERGENCE")
    want = c["expected"]["penalty"]
    assert min(V.tensor(want).tolist() if isinstance(want, dict) else want) < -1


def penalties(lengths: list[float], budget: int, threshold: float) -> list[float]:
    import numpy as np

    return length_penalty(np.array(lengths, dtype=np.int64), budget, threshold).tolist()


# --- entropy and log-probs from logits --------------------------------------------------------------------------------------


def head(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Through the project's own head: an identity matrix makes hidden states the logits."""
    z = logits.reshape(-1, logits.shape[-1]).requires_grad_()
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    logprobs, entropy = TokenLogprobs.apply(z, eye, None, labels.reshape(-1).long(), Head(), True)
    return z, logprobs.view(labels.shape), entropy.view(labels.shape)


def test_entropy_from_logits() -> None:
    c = V.case("entropy", "entropy_from_logits")
    x = V.inputs(c)
    mask = x["mask"].bool()
    z, _, entropy = head(x["logits"], torch.zeros(mask.shape))
    V.close(c, entropy.detach(), "entropy", mask)
    torch.where(mask, entropy, 0.0).sum().backward()
    V.close(c, z.grad.view(x["logits"].shape), "grad_logits", mask)


def test_selected_log_probs() -> None:
    c = V.case("entropy", "selective_logprobs")
    x = V.inputs(c)
    _, logprobs, _ = head(x["logits"], x["labels"])
    V.close(c, logprobs.detach(), "logprobs")


def test_token_mean_of_the_entropy() -> None:
    c = V.case("entropy", "entropy_token_mean")
    x = V.inputs(c)
    mask = x["mask"].bool()
    _, _, entropy = head(x["logits"], torch.zeros(mask.shape))
    V.close(c, entropy[mask].mean().detach(), "entropy")


# --- nothing else is left out -----------------------------------------------------------------------------------------------


def test_paper_form_of_gfpo_is_the_table_s() -> None:
    assert GFPO_PAPER.advantage == GroupNorm(baseline="retained", ddof=0, eps=0.0) and REINFORCE.kl is not None
    assert math.isclose(float(GSPO.surrogate.high), 4e-4) and isinstance(GSPO.weight, SequenceMean)


def test_schedules_of_lambda_and_clip_reach_the_parts() -> None:
    """λ 0.9 -> 0.95 over the first half of the updates; ε 0.2 · 0.95^⌊s/1000⌋, floor 0.05 reached at s = 28,000."""
    ppo = replace(
        PPO,
        advantage=GAE(lam=Linear(start=0.9, end=0.95, fraction=0.5)),
        surrogate=Clip(low=Decay(start=0.2, floor=0.05), high=Decay(start=0.2, floor=0.05)),
    )
    for update, lam, clip in (
        (0, 0.9, 0.2),
        (999, 0.9024975, 0.2),
        (10_000, 0.925, 0.2 * 0.95**10),
        (20_000, 0.95, 0.2 * 0.95**20),
        (28_000, 0.95, 0.05),
    ):
        now = ppo.at(Progress(update=update, updates=40_000))
        assert now.advantage == GAE(lam=pytest.approx(lam, abs=1e-6))
        assert now.surrogate == Clip(low=pytest.approx(clip), high=pytest.approx(clip))
    assert moved(ppo, ppo.at(Progress(update=20_000, updates=40_000)))["advantage.lam"] == pytest.approx(0.95)
