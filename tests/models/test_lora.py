"""The short path against peft's own."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from torch import nn

from policyloop.models.lora import QuickLinear, quicken


def layers(**config: float | bool) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False)).double()
    theirs = get_peft_model(base, LoraConfig(r=2, lora_alpha=6, target_modules=["0", "2"], **config))  # type: ignore[arg-type]
    for p in theirs.parameters():
        if p.requires_grad:
            nn.init.normal_(p)
    ours = copy.deepcopy(theirs)
    assert quicken(ours) == 2 and quicken(ours) == 0
    return theirs, ours


def test_values_and_every_gradient_are_those_of_peft() -> None:
    found = []
    for model in layers():
        x = torch.linspace(-1, 1, 36, dtype=torch.float64).view(2, 3, 6).requires_grad_()
        y = model(x)
        (y * torch.linspace(1, 2, 24, dtype=torch.float64).view(2, 3, 4)).sum().backward()
        found.append([y, x.grad, *(p.grad for p in model.parameters() if p.requires_grad)])
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    assert len(found[0]) == 6
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("mode", ["disabled", "merged", "dropout", "dora"])
def test_whatever_is_not_plain_takes_the_path_of_peft(mode: str) -> None:
    theirs, ours = layers(lora_dropout=0.5 if mode == "dropout" else 0.0, use_dora=mode == "dora")
    assert sum(isinstance(m, QuickLinear) for m in ours.modules()) == 2
    x = torch.ones(3, 6, dtype=torch.float64)
    out = []
    for model in (theirs.train(), ours.train()):
        torch.manual_seed(1)
        if mode == "merged":
            for m in model.modules():
                if isinstance(m, Linear):
                    m.merge()
        if mode == "disabled":
            with model.disable_adapter():  # type: ignore[operator]
                out.append(model(x))
        else:
            out.append(model(x))
    torch.testing.assert_close(out[1], out[0], atol=1e-12, rtol=0)


def test_under_autocast_the_products_are_bf16_and_the_gradients_float32() -> None:
    model = get_peft_model(nn.Sequential(nn.Linear(8, 8)), LoraConfig(target_modules=["0"]))
    quicken(model)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(torch.ones(2, 8))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
