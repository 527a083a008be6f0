"""Objectives on pairs: other people's numbers (value and gradient), and the laws of a pair."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policyloop.algorithms import CDPO, DPO, HINGE, IPO, ORPO, RDPO, REWARD_MODEL, SIMPO, Preference
from policyloop.algorithms.parts.pair import OddsRatio, Sigmoid, Squared, log1mexp
from policyloop.algorithms.plain import batch_of
from policyloop.types import Batch, Outputs

_spec = importlib.util.spec_from_file_location("vectors", Path(__file__).parent / "vectors.py")
assert _spec is not None and _spec.loader is not None
V = importlib.util.module_from_spec(_spec)
sys.modules.setdefault("vectors", V)
_spec.loader.exec_module(V)

PAIRS = torch.arange(6).repeat_interleave(2)


def both(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(2P, ...) rows in pairs, chosen first."""
    return torch.stack([chosen, rejected], 1).flatten(0, 1)


def loss_of(objective: Any, logprobs_NT: Tensor, mask_NT: Tensor, ref_NT: Tensor | None = None, **more: Any) -> Any:
    group = torch.arange(len(mask_NT) // 2).repeat_interleave(2)
    batch = batch_of(mask_NT, group_N=group, ref_logprobs_NT=ref_NT, **more)
    outputs = Outputs(logprobs_NT, torch.zeros_like(logprobs_NT), logprobs_NT)
    return objective(outputs, objective.weigh(batch))


# --- DPO and its variants ---------------------------------------------------------------------------------------------------

OFFICIAL = {
    "dpo_official_sigmoid": DPO,
    "dpo_official_ipo_summed": Preference(loss=Squared(beta=0.1, average=False)),
    "dpo_official_reference_free": Preference(loss=Sigmoid(beta=0.1), reference_free=True),
    "dpo_official_cdpo_ls0p1": CDPO,
    "dpo_openrlhf_cdpo": CDPO,
    "dpo_openrlhf_ipo": Preference(loss=Squared(beta=0.1, average=False)),
}
TRL = {"dpo_trl_sigmoid": DPO, "dpo_trl_ipo": IPO, "dpo_trl_hinge": HINGE, "dpo_trl_robust": RDPO}
OTHER = {"simpo_trl": SIMPO, "orpo_trl_odds_ratio": Preference(loss=OddsRatio(beta=0.1, nll=0.0))}


def test_every_case_is_reproduced() -> None:
    assert {c["id"] for c in V.cases("preference")} <= {*OFFICIAL, *TRL, *OTHER}


@pytest.mark.parametrize("c", [c for c in V.cases("preference") if c["id"] in OFFICIAL], ids=lambda c: c["id"])
def test_on_summed_logprobs(c: dict[str, Any]) -> None:
    """One token per side carries the whole sum."""
    x, objective = V.inputs(c), OFFICIAL[c["id"]]
    chosen, rejected = (x[f"policy_{side}_logps"].requires_grad_() for side in ("chosen", "rejected"))
    ref = both(x["ref_chosen_logps"], x["ref_rejected_logps"])[:, None]
    loss = loss_of(objective, both(chosen, rejected)[:, None], torch.ones(12, 1, dtype=torch.bool), ref)
    loss.value.backward()
    V.close(c, loss.value.detach(), "loss")
    V.close(c, chosen.grad, "grad_chosen")
    V.close(c, rejected.grad, "grad_rejected")
    figures = {k: s.result() for k, s in loss.metrics.items()}
    if c["params"].get("reference_free"):
        return  # the reference code still subtracts the reference in what it reports; we report what the loss sees
    for side in ("chosen", "rejected"):
        assert figures[f"rewards/{side}"] == pytest.approx(float(V.expected(c, f"{side}_rewards").mean()))
    assert figures["rewards/accuracy"] == pytest.approx(float(V.expected(c, "accuracy")))


@pytest.mark.parametrize("c", [c for c in V.cases("preference") if c["id"] in TRL], ids=lambda c: c["id"])
def test_on_tokens(c: dict[str, Any]) -> None:
    """Their batch is [all chosen; all rejected], ours lies in pairs."""
    x = V.inputs(c)
    order = torch.tensor([[i, i + 6] for i in range(6)]).flatten()
    logprobs = x["logprobs"].requires_grad_()
    mask = x["shifted_mask"].bool()
    loss = loss_of(TRL[c["id"]], logprobs[order], mask[order], x["ref_logprobs"][order])
    loss.value.backward()
    V.close(c, loss.value.detach(), "loss")
    V.close(c, logprobs.grad, "grad_logprobs", mask)
    assert not logprobs.grad[~mask].any()


@pytest.mark.parametrize("c", [c for c in V.cases("preference") if c["id"] in OTHER], ids=lambda c: c["id"])
def test_on_averages(c: dict[str, Any]) -> None:
    """Three equal tokens a side have the given average; the gradient of the average is the sum of theirs."""
    x = V.inputs(c)
    chosen, rejected = (x[f"avg_{side}_logps"].requires_grad_() for side in ("chosen", "rejected"))
    logprobs = both(chosen, rejected)[:, None].expand(12, 3)
    loss = loss_of(OTHER[c["id"]], logprobs, torch.ones(12, 3, dtype=torch.bool))
    loss.value.backward()
    V.close(c, loss.value.detach(), "loss" if "loss" in c["expected"] else "or_loss")
    V.close(c, chosen.grad, "grad_chosen")
    V.close(c, rejected.grad, "grad_rejected")


def test_ipo_on_sums_and_on_averages_differ() -> None:
    c = V.case("preference", "dpo_trl_ipo")
    x, order = V.inputs(c), torch.tensor([[i, i + 6] for i in range(6)]).flatten()
    summed = loss_of(
        OFFICIAL["dpo_official_ipo_summed"], x["logprobs"][order], x["shifted_mask"].bool()[order], x["ref_logprobs"][order]
    )
    assert abs(float(summed.value) - float(V.expected(c, "loss"))) > 1


def test_cdpo_and_rdpo_by_their_definitions() -> None:
    """h = 2, beta 0.1: log sigmoid(0.2) = -0.598139, log sigmoid(-0.2) = -0.798139."""
    logprobs, ref = torch.tensor([[-10.0], [-12.0]], dtype=torch.float64), torch.full((2, 1), -11.0, dtype=torch.float64)
    mask = torch.ones(2, 1, dtype=torch.bool)
    assert float(loss_of(CDPO, logprobs, mask, ref).value) == pytest.approx(0.9 * 0.598138869 + 0.1 * 0.798138869)
    assert float(loss_of(RDPO, logprobs, mask, ref).value) == pytest.approx((0.9 * 0.598138869 - 0.1 * 0.798138869) / 0.8)


def test_orpo_adds_the_chosen_side_s_nll() -> None:
    logprobs, mask = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64), torch.ones(2, 1, dtype=torch.bool)
    without = loss_of(OTHER["orpo_trl_odds_ratio"], logprobs, mask).value
    assert float(loss_of(ORPO, logprobs, mask).value - without) == pytest.approx(1.0)


@pytest.mark.parametrize("x", [-1e-12, -1e-7, -0.5, -0.6931, -0.7, -50.0, -1000.0, 0.0])
def test_log1mexp_is_finite_with_its_gradient(x: float) -> None:
    t = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    log1mexp(t).sum().backward()
    assert torch.isfinite(log1mexp(t)).all() and torch.isfinite(t.grad).all()


# --- the reward model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", V.cases("reward_model"), ids=lambda c: c["id"])
def test_reward_model(c: dict[str, Any]) -> None:
    x, p = V.inputs(c), c["params"]
    chosen, rejected = (x[f"rewards_{side}"].requires_grad_() for side in ("chosen", "rejected"))
    values = both(chosen, rejected)[:, None]
    margin = x.get("margin", torch.zeros(6, dtype=torch.float64))
    objective = replace(REWARD_MODEL, center=p.get("center_rewards_coefficient") or 0.0, margin="margin" in x)
    scores = both(margin, torch.zeros_like(margin))
    loss = loss_of(objective, values, torch.ones(12, 1, dtype=torch.bool), rewards_N=scores)
    loss.value.backward()
    V.close(c, loss.value.detach(), "loss")
    if "grad" in c["expected"]:
        V.close(c, torch.cat([chosen.grad, rejected.grad]), "grad")
    else:
        V.close(c, chosen.grad, "grad_chosen")
        V.close(c, rejected.grad, "grad_rejected")
    figures = {k: s.result() for k, s in loss.metrics.items()}
    for ours, theirs in (("rewards/accuracy", "accuracy"), ("rewards/margin", "margin_mean")):
        if theirs in c["expected"]:
            assert figures[ours] == pytest.approx(float(V.expected(c, theirs)))


def test_reward_is_read_at_the_last_token_whatever_stands_in_the_padding() -> None:
    values = torch.tensor([[1.0, 5.0, 9.0], [2.0, 9.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    assert loss_of(REWARD_MODEL, values, mask).metrics["rewards/margin"].result() == 3.0


def test_extreme_margins_stay_finite() -> None:
    values = torch.tensor([[-5000.0], [5000.0]], dtype=torch.float64, requires_grad=True)
    loss = loss_of(REWARD_MODEL, values, torch.ones(2, 1, dtype=torch.bool)).value
    loss.backward()
    assert float(loss.detach()) == 10000.0 and torch.isfinite(values.grad).all()


# --- laws -------------------------------------------------------------------------------------------------------------------

EVERY = {"dpo": DPO, "cdpo": CDPO, "rdpo": RDPO, "ipo": IPO, "hinge": HINGE, "simpo": SIMPO, "orpo": ORPO, "rm": REWARD_MODEL}


def made(pairs: int = 4, width: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    logprobs, ref = (-torch.rand(2 * pairs, width, generator=g, dtype=torch.float64) - 0.05 for _ in range(2))
    length = torch.randint(1, width + 1, (2 * pairs, 1), generator=g)
    return logprobs.requires_grad_(), ref, torch.arange(width) < length


@pytest.mark.parametrize("objective", EVERY.values(), ids=EVERY)
def test_a_split_into_micro_batches_changes_no_gradient(objective: Any) -> None:
    logprobs, ref, mask = made()
    whole = loss_of(objective, logprobs, mask, ref)
    whole.value.backward()
    expected, logprobs.grad = logprobs.grad, None
    batch = objective.weigh(batch_of(mask, group_N=torch.arange(4).repeat_interleave(2), ref_logprobs_NT=ref))
    total = 0.0
    for rows in ([0, 1], [2, 3, 4, 5, 6, 7]):
        part: Batch = batch.rows(rows)
        loss = objective(Outputs(logprobs[rows], torch.zeros_like(logprobs[rows]), logprobs[rows]), part)
        loss.value.backward()
        total += float(loss.value.detach())
    assert total == pytest.approx(float(whole.value.detach()), abs=1e-12)
    torch.testing.assert_close(logprobs.grad, expected)


@pytest.mark.parametrize("objective", EVERY.values(), ids=EVERY)
def test_padding_and_pairs_with_an_empty_side_teach_nothing(objective: Any) -> None:
    logprobs, ref, mask = made()
    mask[3] = False  # the second pair's rejected side
    padded = torch.where(mask, logprobs, float("nan"))
    batch = objective.weigh(batch_of(mask, group_N=torch.arange(4).repeat_interleave(2), ref_logprobs_NT=ref))
    rows = objective.active(batch).nonzero()[:, 0]
    assert rows.tolist() == [0, 1, 4, 5, 6, 7]
    assert objective.describe(batch)["pairs/empty"].result() == 1
    loss = objective(Outputs(padded[rows], torch.zeros_like(padded[rows]), logprobs[rows]), batch.rows(rows)).value
    loss.backward()
    without = loss_of(objective, logprobs.detach()[rows], mask[rows], ref[rows]).value
    assert float(loss.detach()) == pytest.approx(float(without))
    assert torch.isfinite(logprobs.grad).all() and not logprobs.grad[2:4].any() and not logprobs.grad[~mask].any()


@pytest.mark.parametrize("objective", [DPO, CDPO, IPO, HINGE, SIMPO, ORPO], ids=["dpo", "cdpo", "ipo", "hinge", "simpo", "orpo"])
def test_a_step_downhill_favours_the_chosen_side(objective: Any) -> None:
    logprobs, ref, mask = made()
    loss_of(objective, logprobs, mask, ref).value.backward()
    assert (logprobs.grad[0::2][mask[0::2]] < 0).all() and (logprobs.grad[1::2][mask[1::2]] > 0).all()


def test_only_losses_against_a_reference_ask_for_one() -> None:
    needs = {name: objective.needs_reference for name, objective in EVERY.items()}
    assert needs == {
        "dpo": True,
        "cdpo": True,
        "rdpo": True,
        "ipo": True,
        "hinge": True,
        "simpo": False,
        "orpo": False,
        "rm": False,
    }
    assert not replace(DPO, reference_free=True).needs_reference
