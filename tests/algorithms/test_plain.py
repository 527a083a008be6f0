"""The functions on plain tensors: PPO in one call as the textbooks write it, and the others against their algorithms' definitions."""

from __future__ import annotations

import pytest
import torch

from policyloop.algorithms import (
    RLOO,
    cispo_loss,
    dapo_loss,
    drgrpo_loss,
    gae_advantages,
    group_advantages,
    gspo_loss,
    ppo_loss,
    reinforce_loss,
    rloo_loss,
)

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()


def toy() -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, generator=g, dtype=torch.float64).requires_grad_()
    values = torch.randn(2, 3, generator=g, dtype=torch.float64).requires_grad_()
    return logits, values, torch.randint(0, 5, (2, 3), generator=g), torch.tensor([1.0, 0.0], dtype=torch.float64)


def by_hand(logits: torch.Tensor, values: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> dict[str, float]:
    """First update, so ratio 1 and values unclipped: policy = -mean A = 0 (whitened), value = mean 0.5 (v - ret)², entropy = mean H."""
    returns, raw = {}, {}
    for n, length in ((0, 3), (1, 2)):
        ahead, after = 0.0, 0.0
        for t in reversed(range(length)):
            v = float(values[n, t])
            ahead = (float(rewards[n]) if t == length - 1 else 0.0) + after - v + 0.95 * ahead
            after = v
            raw[n, t], returns[n, t] = ahead, ahead + v
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()[MASK].mean()
    error = sum(0.5 * (float(values[k]) - r) ** 2 for k, r in returns.items()) / 5
    return {"policy": 0.0, "value": 0.5 * error, "entropy": -0.01 * float(entropy)}


def test_ppo_loss_is_its_three_terms() -> None:
    logits, values, actions, rewards = toy()
    loss = ppo_loss(logits, values, actions, rewards, MASK)
    want = by_hand(logits, values.detach(), actions, rewards)
    assert loss.metrics["loss/policy"].result() == pytest.approx(want["policy"], abs=1e-6)
    assert loss.metrics["loss/value"].result() == pytest.approx(want["value"], rel=1e-6)
    assert loss.metrics["loss/entropy"].result() == pytest.approx(want["entropy"], rel=1e-9)
    assert float(loss.value.detach()) == pytest.approx(sum(want.values()), abs=1e-6)


def test_no_policy_gradient_flows_into_the_critic_and_none_from_padding() -> None:
    """With value_coef 0 the critic gets nothing, though the advantages are made of its values."""
    logits, values, actions, rewards = toy()
    ppo_loss(logits, values, actions, rewards, MASK, value_coef=0.0).value.backward()
    assert values.grad is None or not values.grad.any()
    assert logits.grad is not None and logits.grad[MASK].any() and not logits.grad[~MASK].any()


def test_a_reference_adds_the_kl() -> None:
    logits, values, actions, rewards = toy()
    logprobs = logits.detach().log_softmax(-1).gather(-1, actions[..., None])[..., 0]
    same = ppo_loss(logits, values, actions, rewards, MASK, ref_logprobs=logprobs)
    assert same.metrics["loss/kl"].result() == pytest.approx(0.0, abs=1e-12)
    far = ppo_loss(logits, values, actions, rewards, MASK, ref_logprobs=logprobs - 0.1, kl_coef=2.0)
    k3 = torch.expm1(torch.tensor(-0.1, dtype=torch.float64)) + 0.1
    assert far.metrics["loss/kl"].result() == pytest.approx(2.0 * float(k3), rel=1e-9)


def test_old_log_probs_make_a_ratio_that_is_clipped() -> None:
    logits, values, actions, rewards = toy()
    old = logits.detach().log_softmax(-1).gather(-1, actions[..., None])[..., 0] - 1.0  # ratio e everywhere
    loss = ppo_loss(logits, values, actions, rewards, MASK, old_logprobs=old, value_coef=0.0, entropy_coef=0.0)
    advantages, _ = gae_advantages(rewards, values, MASK)
    want = torch.maximum(-advantages * torch.e, -advantages * 1.2)[MASK].mean()
    assert float(loss.value.detach()) == pytest.approx(float(want), rel=1e-6)


def test_losses_of_the_others() -> None:
    """Advantage 1 on row 0 (3 tokens), -1 on row 1 (2 tokens), log-prob ratio 1.1 on every token."""
    logprobs = torch.full((2, 3), -1.0, dtype=torch.float64)
    old, a = logprobs - torch.log(torch.tensor(1.1, dtype=torch.float64)), torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert float(drgrpo_loss(logprobs, old, a, MASK, 10)) == pytest.approx((-3 * 1.1 + 2 * 1.1) / 10 / 2)
    assert float(dapo_loss(logprobs, old, a, MASK)) == pytest.approx((-3 * 1.1 + 2 * 1.1) / 5)
    assert float(cispo_loss(logprobs, old, a, MASK)) == pytest.approx((-3 * 1.1 * -1 + 2 * 1.1 * -1) / 5)
    assert float(gspo_loss(logprobs, old, a, MASK)) == pytest.approx((-1.0004 + 1.1) / 2)
    assert float(rloo_loss(logprobs, old, a, MASK)) == pytest.approx((-3 * 1.1 + 2 * 1.1) / 2)
    assert float(reinforce_loss(logprobs, a, MASK)) == pytest.approx((-3 * -1 + 2 * -1) / 2)
    kept = dapo_loss(logprobs, old, a, MASK, keep=torch.tensor([True, False]))
    assert float(kept) == pytest.approx(-1.1)  # a dropped row leaves the denominator too
    r = group_advantages(torch.tensor([1.0, 0, 0]), torch.zeros(3, dtype=torch.int64), algorithm=RLOO)
    assert r.tolist() == pytest.approx([1.0, -0.5, -0.5])
