"""Other people's reference numbers: losses with gradients, advantages, KL, corrections, values. Divergence cases are shown NOT to be copied."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policyloop.algorithms import GRPO, SFT, PolicyGradient
from policyloop.algorithms.parts.advantage import GAE, GroupNorm, LeaveOneOut, gae, group_moments, whiten
from policyloop.algorithms.parts.correction import ImportanceWeight, SequenceMaskTis
from policyloop.algorithms.parts.filter import TopK
from policyloop.algorithms.parts.kl import KL, estimate
from policyloop.algorithms.parts.ratio import SequenceProductRatio, SequenceRatio
from policyloop.algorithms.parts.schedule import Decay
from policyloop.algorithms.parts.surrogate import Cispo, Clip
from policyloop.algorithms.parts.value import ValueLoss, explained_variance
from policyloop.algorithms.parts.weight import Constant, SequenceMean, SequenceSum, TokenMean
from policyloop.algorithms.plain import batch_of, policy_loss
from policyloop.algorithms.policy_gradient import weighted
from policyloop.types import Completion, Group, Outputs, Progress, Prompt, Score

_spec = importlib.util.spec_from_file_location("vectors", Path(__file__).parent / "vectors.py")
assert _spec is not None and _spec.loader is not None
V = importlib.util.module_from_spec(_spec)
sys.modules.setdefault("vectors", V)
_spec.loader.exec_module(V)

PLAIN = replace(GRPO, kl=None, surrogate=Clip(low=0.2, high=0.2))
AGGREGATION = {
    "token-mean": TokenMean(),
    "seq-mean-token-mean": SequenceMean(),
    "seq-mean-token-sum": SequenceSum(),
    "seq-mean-token-sum-norm": Constant(max_tokens=7),
}


def check_loss(c: dict[str, Any], algorithm: PolicyGradient, **more: Tensor) -> None:
    x = V.inputs(c)
    logprobs = x["logprobs"].requires_grad_()
    advantages = x["advantages"] if "advantages" in x else x["advantages_seq"]
    loss = policy_loss(algorithm, logprobs, x["old_logprobs"], advantages, x["mask"].bool(), **more)
    loss.backward()
    V.close(c, loss.detach(), "loss")
    V.close(c, logprobs.grad, "grad_logprobs", x["mask"].bool())
    assert not logprobs.grad[~x["mask"].bool()].any()


@pytest.mark.parametrize("c", [c for c in V.cases("policy_loss") if "agg" in c["params"]], ids=lambda c: c["id"])
def test_clipped_losses(c: dict[str, Any]) -> None:
    p = c["params"]
    clip = Clip(low=p["eps_low"], high=p["eps_high"], dual=p.get("dual_clip_c"))
    check_loss(c, replace(PLAIN, surrogate=clip, weight=AGGREGATION[p["agg"]]))


def test_sequence_product_ratio_of_rloo() -> None:
    """One term per sequence: spread over its tokens, the mean of a constant is the constant."""
    check_loss(
        V.case("policy_loss", "rloo_loss_trl_sequence_ratio"), replace(PLAIN, ratio=SequenceProductRatio(), weight=SequenceMean())
    )


def test_constant_normaliser_of_dr_grpo() -> None:
    check_loss(V.case("policy_loss", "drgrpo_loss_official_constant"), replace(PLAIN, weight=Constant(max_tokens=16)))


def test_two_ranks_with_global_tokens() -> None:
    """Weights fixed on the whole step: the ranks' gradients are the whole's rows, without any factor."""
    c = V.case("policy_loss", "dp2_global_token_mean")
    x = V.inputs(c)
    mask = x["mask"].bool()
    batch = batch_of(mask, old_logprobs_NT=x["old_logprobs"])
    batch.advantages_NT = torch.where(mask, x["advantages"], 0.0)
    algorithm = replace(PLAIN, surrogate=Clip(low=0.2, high=0.2, dual=3.0))
    batch = algorithm.weigh(batch)
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7]):
        logprobs = x["logprobs"][rows].requires_grad_()
        algorithm(Outputs(logprobs, torch.zeros_like(logprobs)), batch.rows(rows)).value.backward()
        torch.testing.assert_close(logprobs.grad[mask[rows]], V.expected(c, "global_grad")[rows][mask[rows]], **c["tolerance"])


@pytest.mark.parametrize("c", V.cases("gspo"), ids=lambda c: c["id"])
def test_gspo(c: dict[str, Any]) -> None:
    p = c["params"]
    clip = Clip(low=p["eps_low"], high=p["eps_high"])
    for token in (False, True):
        check_loss(c, replace(PLAIN, ratio=SequenceRatio(token=token), surrogate=clip, weight=SequenceMean()))


@pytest.mark.parametrize("c", V.cases("cispo"), ids=lambda c: c["id"])
def test_cispo(c: dict[str, Any]) -> None:
    p = c["params"]
    check_loss(c, replace(PLAIN, surrogate=Cispo(weight_min=p["weight_min"] or 0.0, weight_max=p["weight_max"])))


LOSS_TYPE = {"grpo": SequenceMean(), "dapo": TokenMean(), "bnpo": TokenMean(), "dr_grpo": Constant(max_tokens=7)}


def trl_cases() -> list[dict[str, Any]]:
    """Two have tests of their own: TRL counts an empty row in the sequence mean, here it is none; the off-policy mask reads a third policy."""
    own = ("trl_grpo_fully_masked_row", "trl_off_policy_sequence_mask")
    return [
        c for c in V.cases("trl_grpo_loss") if "grad_logprobs" in c["expected"] and c["kind"] == "oracle" and c["id"] not in own
    ]


@pytest.mark.parametrize("c", trl_cases(), ids=lambda c: c["id"])
def test_trl_losses(c: dict[str, Any]) -> None:
    p, x = c["params"], V.inputs(c)
    beta = p.get("beta", 0.0)
    ref = x.get("ref_logprobs")
    algorithm = replace(
        PLAIN,
        surrogate=Clip(low=p.get("eps_low", 0.2), high=p.get("eps_high", 0.2)),
        weight=LOSS_TYPE[p.get("loss_type", "grpo")],
        kl=KL(coef=beta) if beta else None,
    )
    more = {"ref_logprobs": ref} if beta and ref is not None else {}
    check_loss(c, algorithm, **more)


def test_an_empty_row_is_no_row() -> None:
    """TRL's number with the empty row in the denominator is ours times (rows - empty) / rows."""
    c = V.case("trl_grpo_loss", "trl_grpo_fully_masked_row")
    x = V.inputs(c)
    mask = x["mask"].bool()
    ours = policy_loss(replace(PLAIN, weight=SequenceMean()), x["logprobs"], x["old_logprobs"], x["advantages_seq"], mask)
    full = int((mask.sum(1) > 0).sum())
    torch.testing.assert_close(ours * full / len(mask), V.expected(c, "loss"), **c["tolerance"])


def test_local_means_are_not_copied() -> None:
    c = V.case("trl_grpo_loss", "trl_bnpo_grad_accum_2_DIVERGENCE")
    x = V.inputs(c)
    ours = policy_loss(PLAIN, x["logprobs"], x["old_logprobs"], x["advantages_seq"], x["mask"].bool())
    assert abs(float(ours) - float(V.expected(c, "summed"))) > 1e-3


# --- advantages -------------------------------------------------------------------------------------------------------------


def advantage(part: Any, x: dict[str, Tensor], rewards: Tensor | None = None) -> Tensor:
    mask = x.get("mask", torch.ones(len(x["group_ids"]), 3)).bool()
    batch = batch_of(mask, x["rewards"] if rewards is None else rewards, x["group_ids"].long())
    return part(batch)


@pytest.mark.parametrize(
    "c",
    [c for c in V.cases("group_advantages") if c["id"].startswith(("grpo_verl", "grpo_trl_group", "grpo_trl_batch"))],
    ids=lambda c: c["id"],
)
def test_group_advantages(c: dict[str, Any]) -> None:
    p, x = c["params"], V.inputs(c)
    got = advantage(GroupNorm(std=p["scale"], eps=p["eps"], ddof=p["ddof"]), x)
    mask = x.get("mask", torch.ones(got.shape)).bool()
    V.close(c, got.sum(1) / mask.sum(1).clamp_min(1), "advantages_seq")


@pytest.mark.parametrize(("id", "std"), [("drgrpo_official_grpo", "group"), ("drgrpo_official_drgrpo", "none")])
def test_dr_grpo_official(id: str, std: Any) -> None:
    c = V.case("group_advantages", id)
    V.close(c, advantage(GroupNorm(std=std, eps=1e-8), V.inputs(c))[:, 0], "advantages_seq")


@pytest.mark.parametrize("id", ["rloo_verl_basic", "rloo_verl_zero_variance_group", "rloo_trl_plain"])
def test_leave_one_out(id: str) -> None:
    c = V.case("group_advantages", id)
    got = advantage(LeaveOneOut(), {k: v for k, v in V.inputs(c).items() if k != "mask"})
    V.close(c, got[:, 0], "advantages_seq")


def test_nan_rewards_are_left_out() -> None:
    c = V.case("group_advantages", "grpo_trl_nan_rewards")
    x, weights = V.inputs(c), torch.tensor(c["params"]["reward_weights"], dtype=torch.float64)
    parts = torch.where(x["rewards_per_func"] == c["params"]["nan_sentinel"], torch.nan, x["rewards_per_func"])
    total = torch.where(parts.isnan().all(1), torch.nan, (parts * weights).nansum(1))
    V.close(c, advantage(GroupNorm(eps=1e-4), x, total)[:, 0], "advantages_seq")


def test_baseline_then_whiten() -> None:
    c = V.case("group_advantages", "reinforce_pp_baseline_verl")
    x = V.inputs(c)
    V.close(c, advantage(GroupNorm(std="none", whiten=True), x), "advantages", x["mask"].bool())


@pytest.mark.parametrize("id", ["reinforce_pp_verl", "reinforce_pp_verl_multiturn"])
def test_return_to_go(id: str) -> None:
    c = V.case("group_advantages", id)
    x = V.inputs(c)
    mask = x["mask"].bool()
    returns, _ = gae(
        torch.where(mask, x["token_level_rewards"], 0.0), torch.zeros_like(x["mask"]), mask, c["params"]["gamma"], 1.0
    )
    V.close(c, returns, "returns", mask)
    V.close(c, whiten(returns, mask), "advantages", mask)


@pytest.mark.parametrize("id", ["gae_verl_g99_l90", "gae_verl_g1_l1", "gae_verl_multiturn_mask"])
def test_gae(id: str) -> None:
    c = V.case("gae", id)
    x, p = V.inputs(c), c["params"]
    mask = x["mask"].bool()
    raw, returns = gae(torch.where(mask, x["token_level_rewards"], 0.0), x["values"], mask, p["gamma"], p["lam"])
    V.close(c, raw, "advantages_raw", mask)
    V.close(c, returns, "returns", mask)
    V.close(c, whiten(raw, mask), "advantages_whitened", mask)


def test_reward_shaping_and_gae_through_the_seam() -> None:
    """KL in the reward, reward on the last token, GAE: `prepare` of a PPO-like composition."""
    c = V.case("gae", "ppo_reward_shaping_and_gae_openrlhf")
    x, p = V.inputs(c), c["params"]
    mask = x["mask"].bool()
    ppo = replace(
        PLAIN,
        advantage=GAE(gamma=p["gamma"], lam=p["lam"], whiten=False),
        kl=KL(coef=p["kl_coef"], estimator="k1", where="reward"),
    )
    batch = batch_of(
        mask, x["reward"], None, old_logprobs_NT=x["old_logprobs"], ref_logprobs_NT=x["ref_logprobs"], values_NT=x["values"]
    )
    done = ppo.prepare(batch)
    assert done.advantages_NT is not None and done.returns_NT is not None
    V.close(c, done.advantages_NT, "advantages_raw", mask)
    V.close(c, done.returns_NT, "returns", mask)


PAPER_METRIC = {"shortest": "shortest", "token_efficiency": "token_efficiency", "reward": "target_accuracy"}


@pytest.mark.parametrize("id", ["gfpo_paper_shortest_3_8", "gfpo_paper_token_eff_4_8", "gfpo_accuracy_filter_degenerate"])
def test_gfpo_filter_and_paper_advantages(id: str) -> None:
    """Two groups of 8: the filter's marks and the paper's retained statistics."""
    c = V.case("gfpo", id)
    x, p = V.inputs(c), c["params"]
    ids = x["group_ids"].long()
    keep: list[bool] = []
    for g in (0, 1):
        rows = (ids == g).nonzero()[:, 0].tolist()
        completions = tuple(
            Completion((1,), (5,) * int(x["lengths"][n]), (0.0,) * int(x["lengths"][n]), "stop", "r#0", "") for n in rows
        )
        scores = tuple(Score(float(x["rewards"][n]), metric=float(x["rewards"][n])) for n in rows)
        keep += TopK(k=p["k"], metric=PAPER_METRIC[p["metric"]])(Group("g", Prompt.make("t", "q"), completions, scores))
    V.close(c, torch.tensor(keep).double(), "mask")
    batch = batch_of(torch.ones(len(ids), 1), x["rewards"], ids, torch.tensor(keep))
    V.close(c, GroupNorm(baseline="retained", ddof=0, eps=0.0)(batch)[:, 0], "advantages_seq")


def test_gfpo_denominators() -> None:
    c = V.case("gfpo", "gfpo_loss_denominator")
    x = V.inputs(c)
    mask = torch.arange(60)[None] < x["lengths"][:, None]
    for count in ("all", "retained"):
        algorithm = replace(PLAIN, weight=TokenMean(count=count))
        keep = x["mask_retained"].bool()
        loss = policy_loss(algorithm, x["logprobs"], x["old_logprobs"], x["advantages_seq"], mask, keep=keep)
        V.close(c, loss, f"loss_denominator_{count}")


# --- KL, entropy, corrections, values, SFT ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "kind"),
    [
        ("kl_verl_k1", "k1"),
        ("kl_verl_k3_plus", "k3_st"),
        ("kl_openrlhf_k2", "k2"),
        ("kl_openrlhf_k3", "k3"),
        ("kl_k3_extreme", "k3"),
    ],
)
def test_kl(id: str, kind: Any) -> None:
    c = V.case("kl", id)
    x = V.inputs(c)
    mask = x.get("mask", torch.ones(x["logprobs"].shape)).bool()
    logprobs = x["logprobs"].requires_grad_()
    got = estimate(logprobs, x["ref_logprobs"], mask, kind)
    V.close(c, got.detach(), "kl", mask)
    if "grad_of_masked_sum" in c["expected"]:
        got.sum().backward()
        V.close(c, logprobs.grad, "grad_of_masked_sum", mask)


WEIGHTS = {
    "tis_verl_token_batchnorm": ImportanceWeight(high=1.3, batch_norm=True),
    "icepop_verl_token": ImportanceWeight(mode="mask", low=0.8, high=1.25),
    "tis_trl_token_truncate": ImportanceWeight(low=0.5, high=1.3),
    "tis_trl_token_mask": ImportanceWeight(mode="mask", low=0.8, high=1.25),
    "tis_trl_sequence_truncate": ImportanceWeight(level="sequence", high=2.0),
    "tis_trl_sequence_mask": ImportanceWeight(level="sequence", mode="mask", high=1.5),
}


@pytest.mark.parametrize("id", WEIGHTS)
def test_importance_weights(id: str) -> None:
    c = V.case("importance_sampling", id)
    x = V.inputs(c)
    sentinel = c["params"].get("nan_sentinel", -999.0)
    rollout = torch.where(x["rollout_logprobs"] == sentinel, torch.nan, x["rollout_logprobs"])
    mask = x["mask"].bool()
    got = WEIGHTS[id](x["old_logprobs"], rollout, mask)
    want = V.expected(c, "weights").expand_as(got)
    torch.testing.assert_close(got[mask], want[mask], **c["tolerance"])


IS_LOSS = {
    "tis": ImportanceWeight(low=0.8, high=1.25),
    "icepop": ImportanceWeight(mode="mask", low=0.8, high=1.25),
    "seq-mask-tis": SequenceMaskTis(low=0.8, high=1.25),
}


@pytest.mark.parametrize("c", [c for c in V.cases("importance_sampling") if c["id"].startswith("is_loss")], ids=lambda c: c["id"])
def test_corrected_losses(c: dict[str, Any]) -> None:
    check_loss(c, replace(PLAIN, correction=IS_LOSS[c["params"]["type"]]), rollout_logprobs=V.inputs(c)["rollout_logprobs"])


def test_correction_touches_the_policy_term_only() -> None:
    c = V.case("importance_sampling", "tis_times_policy_then_kl_trl")
    x, p = V.inputs(c), c["params"]
    algorithm = replace(PLAIN, correction=ImportanceWeight(high=p["cap"]), kl=KL(coef=p["beta"]))
    check_loss(c, algorithm, rollout_logprobs=x["rollout_logprobs"], ref_logprobs=x["ref_logprobs"])


@pytest.mark.parametrize("id", ["value_openrlhf_clip0p2", "value_verl_clip0p5", "value_openrlhf_clip0p5"])
def test_value_loss(id: str) -> None:
    c = V.case("value_loss", id)
    x = V.inputs(c)
    mask, values = x["mask"].bool(), x["values"].requires_grad_()
    loss = weighted(
        ValueLoss(clip=c["params"]["cliprange_value"])(values, x["old_values"], x["returns"]), mask.double() / mask.sum(), mask
    )
    loss.backward()
    V.close(c, loss.detach(), "loss")
    V.close(c, values.grad, "grad_values", mask)


def test_explained_variance() -> None:
    c = V.case("value_loss", "explained_variance_verl")
    x = V.inputs(c)
    m = x["mask"].bool()
    assert explained_variance(x["values"][m], x["returns"][m]) == pytest.approx(c["expected"]["explained_variance"], rel=1e-9)


@pytest.mark.parametrize(
    ("id", "dft"),
    [("sft_openrlhf_token", False), ("sft_trl_nll_2ranks_global_tokens", False), ("sft_trl_dft_2ranks_global_tokens", True)],
)
def test_sft(id: str, dft: bool) -> None:
    """The ranks' factor cancels where ranks sum: the loss over the global tokens is what both references average to."""
    c = V.case("sft", id)
    x, p = V.inputs(c), c["params"]
    mask, logprobs = x["mask"].bool(), x["logprobs"].requires_grad_()
    algorithm = replace(SFT, dft=dft)
    batch = algorithm.weigh(batch_of(mask))
    factor = p.get("num_processes", 1) * float(mask.sum()) / p.get("num_items_in_batch", float(mask.sum()))
    loss = algorithm(Outputs(logprobs, torch.zeros_like(logprobs)), batch).value * factor
    loss.backward()
    V.close(c, loss.detach(), "loss")
    V.close(c, logprobs.grad, "grad_logprobs", mask)


def test_clip_range_schedule() -> None:
    c = V.case("derived_misc", "clip_range_schedule")
    p = c["params"]
    decay = Decay(start=p["eps0"], rate=1 - p["decay"], every=p["every"], floor=p["floor"])
    assert [decay(Progress(update=s)) for s in c["inputs"]["steps"]] == pytest.approx(c["expected"]["eps"], rel=1e-9)


def test_leave_one_out_std_is_not_copied() -> None:
    c = V.case("group_advantages", "grpo_nemo_leave_one_out_DIVERGENCE")
    got = advantage(GroupNorm(), V.inputs(c))[:, 0]
    assert not torch.allclose(got, V.expected(c, "advantages_seq"), atol=1e-3)


def test_two_pass_variance_never_negative() -> None:
    """D01: in float32, 8 x 0.35 has a spread of 3e-8; here it is exactly flat."""
    x = torch.full((8,), 0.35, dtype=torch.float32)
    _, std, _ = group_moments(x, torch.ones(8, dtype=torch.bool), torch.zeros(8, dtype=torch.int64), 1)
    assert float(std.max()) < 1e-8
