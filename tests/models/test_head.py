"""Against the definition in float64; chunks, caps, scales, biases and a trained head included."""

import itertools

import pytest
import torch
from torch import Tensor

from policyloop.models import head as module
from policyloop.models.head import Head, TokenLogprobs

M, H, V = 37, 8, 23


def definition(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    z = torch.nn.functional.linear(hidden, weight, bias) * head.scale
    z = z if head.cap is None else head.cap * torch.tanh(z / head.cap)
    logp = (z / head.temperature).log_softmax(-1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


CASES = list(itertools.product((None, 3.0), (False, True), (False, True), (False, True)))


@pytest.mark.parametrize(("cap", "bias", "trained", "entropy_in_loss"), CASES)
def test_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, cap: float | None, bias: bool, trained: bool, entropy_in_loss: bool
) -> None:
    monkeypatch.setattr(module, "CPU_CHUNK", V * 5)
    torch.manual_seed(0)
    hidden = torch.randn(M, H, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, H, dtype=torch.float64, requires_grad=trained)
    b = torch.randn(V, dtype=torch.float64, requires_grad=trained) if bias else None
    target = torch.randint(0, V, (M,))
    head = Head(scale=0.5, cap=cap, temperature=0.8)
    leaves = [x for x in (hidden, weight, b) if x is not None and x.requires_grad]
    u, v = torch.randn(2, M, dtype=torch.float64)
    found = []
    for logprobs, entropy in (
        definition(hidden, weight, b, target, head),
        TokenLogprobs.apply(hidden, weight, b, target, head, True),
    ):
        loss = (u * logprobs).sum() + ((v * entropy).sum() if entropy_in_loss else 0.0)
        found.append([logprobs, entropy, *torch.autograd.grad(loss, leaves)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-10)


def test_the_example_of_the_module() -> None:
    logprobs, entropy = TokenLogprobs.apply(
        torch.tensor([[1.0]]), torch.tensor([[2.0], [0.0]]), None, torch.tensor([0]), Head(), True
    )
    torch.testing.assert_close(logprobs, torch.tensor([-0.1269]), atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy, torch.tensor([0.3654]), atol=1e-4, rtol=0)


def test_e04_bf16_hidden_states_lose_digits_only_in_the_logits() -> None:
    torch.manual_seed(0)
    words = 49152
    hidden, weight = torch.randn(64, 32).bfloat16(), torch.randn(words, 32).bfloat16()
    target = torch.randint(0, words, (64,))
    logprobs, entropy = TokenLogprobs.apply(hidden, weight, None, target, Head(), True)
    logits = torch.nn.functional.linear(hidden, weight).double()
    exact = logits.log_softmax(-1)
    assert logprobs.dtype == entropy.dtype == torch.float32 and float(logprobs.max()) <= 0
    torch.testing.assert_close(logprobs.double(), exact.gather(1, target[:, None])[:, 0], atol=5e-6, rtol=0)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), atol=2e-5, rtol=0)


def test_a_certain_word_and_an_unsayable_one() -> None:
    weight = torch.tensor([[1e4], [0.0], [-torch.inf]])
    hidden = torch.ones(2, 1, requires_grad=True)
    logprobs, entropy = TokenLogprobs.apply(hidden, weight, None, torch.tensor([0, 1]), Head(), True)
    assert logprobs.tolist() == [0.0, -1e4] and entropy.tolist() == [0.0, 0.0]


def test_not_finite_comes_out_not_finite() -> None:
    weight = torch.tensor([[1.0], [float("nan")]])
    logprobs, _ = TokenLogprobs.apply(torch.ones(1, 1), weight, None, torch.tensor([0]), Head(), True)
    assert not bool(torch.isfinite(logprobs).any())


def test_entropy_costs_nothing_unless_asked_for() -> None:
    hidden, weight, target = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 2])
    assert not TokenLogprobs.apply(hidden, weight, None, target, Head(), False)[1].any()
