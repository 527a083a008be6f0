"""The reward model: the policy's trunk with one scalar per completion instead of log-probs, read at the completion's last token.

forward(packed, temperature) -> Outputs whose values_NT holds the score of row n at its last token, 0 elsewhere. A folder of it is a
policy folder (adapter or whole model) plus `reward_head.safetensors` and `reward_model.json` (mean and spread of its held-out scores).

Example:
    >>> model = open_reward_model("runs/rm/reward_model")
    >>> model.scores([Prompt.make("t", "2+3=")], ["5"])
    [1.73]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from policyloop.errors import BadInput
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.catalogue import resolve
from policyloop.models.pack import Row, pack, split
from policyloop.models.policy import PolicyModel, load_policy
from policyloop.models.sharded import fill, whole
from policyloop.models.template import Renderer, load_renderer
from policyloop.types import Outputs, Packed, Prompt

HEAD, ABOUT = "reward_head.safetensors", "reward_model.json"


class RewardModel(PolicyModel):
    """A `PolicyModel` as far as trainer, checkpoints and files are concerned. The head is fp32 and starts at zero: every answer is
    worth the same until a pair says otherwise."""

    def __init__(self, policy: PolicyModel) -> None:
        nn.Module.__init__(self)
        self.model, self.base_path, self.precision = policy.model, policy.base_path, policy.precision
        self.device_name, self.causal, self.head, self.packs = policy.device_name, policy.causal, policy.head, policy.packs
        self.anchor, self._start, self.extra = None, None, policy.extra
        self.score = nn.Linear(self.causal.config.get_text_config().hidden_size, 1, device=policy.device_name)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)
        output = self.causal.get_output_embeddings()
        if output is not None and output.weight is not self.causal.get_input_embeddings().weight:
            output.requires_grad_(False)  # the head over words gives no score, so it has no gradient
        self.about: dict[str, Any] = {}
        self.renderer: Renderer | None = None  # of the folder it was opened from

    def forward(self, packed: Packed, temperature: float = 1.0, entropy: bool = False) -> Outputs:
        with self.autocast():
            hidden_NH = self.states(at_last_tokens(packed))
        score_N = self.score(hidden_NH.float())[:, 0].cpu()
        last_N = torch.tensor([max(0, n - 1) for n in lengths(packed)])
        nothing = torch.zeros(packed.needed_NT.shape)
        values = nothing.scatter(1, last_N[:, None], score_N[:, None])
        return Outputs(nothing, nothing.clone(), values)

    @torch.no_grad()
    def scores(
        self, prompts: Sequence[Prompt], answers: Sequence[str], whole: Sequence[bool] = (), budget: int = 4096
    ) -> list[float]:
        """One number per answer, rendered by this model's own template; `whole` False: cut off, so no end of turn follows."""
        renderer = self.renderer
        assert renderer is not None, "open_reward_model gives it one"
        rows: list[Row] = []
        for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            ids, mask = renderer.demonstration(prompt, answer)
            first = mask.index(1)
            ended = not whole or whole[n]
            rows.append((n, ids[:first], ids[first:] if ended or len(ids) == first + 1 else ids[first:-1]))
        found: list[float] = []
        for part in split(rows, budget):
            chosen = [rows[i] for i in part]
            width = max(len(r[2]) for r in chosen)
            out = self(pack(chosen, torch.ones(len(chosen), width, dtype=torch.bool)))
            assert out.values_NT is not None
            found += [float(row[len(r[2]) - 1]) for row, r in zip(out.values_NT, chosen, strict=True)]
        return found

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [*super().trainable(), *((f"score.{name}", p) for name, p in self.score.named_parameters())]

    def files(self) -> dict[str, bytes]:
        head = {name: whole(p).cpu().contiguous() for name, p in self.score.named_parameters()}
        about = {"schema": 1, "base": str(self.base_path), **self.about}
        return {**super().files(), HEAD: save_tensors(head), ABOUT: json.dumps(about, indent=1, sort_keys=True).encode()}

    def load_files(self, files: Mapping[str, bytes]) -> None:
        super().load_files(files)
        if HEAD not in files:
            raise BadInput("the folder has no reward head", f"a reward model's folder with {HEAD}", "the reward model's folder")
        found = load_tensors(files[HEAD])
        for name, p in self.score.named_parameters():
            fill(p, found[name])


def lengths(packed: Packed) -> list[int]:
    """Tokens of every row, in order."""
    return [n for segment in packed.layout for n in segment.completion_tokens]


def at_last_tokens(packed: Packed) -> Packed:
    """The same input, asking for the state AT each row's last token (of the prompt, where the row is empty) instead of before it."""
    at: list[int] = []
    for segment in packed.layout:
        end = segment.start + segment.prompt_tokens
        for n in segment.completion_tokens:
            at.append(end + n - 1 if n else segment.start + segment.prompt_tokens - 1)
            end += n
    length_N = torch.tensor(lengths(packed))
    shape = (len(at), int(length_N.max()) + 1)
    column = torch.nn.functional.one_hot(length_N, shape[1]).bool()
    row_NT = torch.where(column, torch.tensor(at)[:, None], -1)
    return replace(packed, row_NT=row_NT, target_NT=torch.zeros(shape, dtype=torch.int64), needed_NT=column)


def load_reward_model(
    settings: ModelSettings, precision: str, device: str, seed: int, *, micro_batch_tokens: int = 4096
) -> RewardModel:
    """A trunk and a fresh head, ready to train; a base_model_path that is a reward model's folder goes on with its head."""
    model = RewardModel(load_policy(settings, precision, device, seed, supervised=True, micro_batch_tokens=micro_batch_tokens))
    head = resolve(settings.base_model_path) / HEAD
    if head.exists():
        model.score.load_state_dict(load_tensors(head.read_bytes()))
    return model


def open_reward_model(folder: str | Path, device: str = "auto") -> RewardModel:
    """A saved reward model, frozen, to score with. Errors: BadInput for a folder without a reward head, NotFound."""
    text = str(folder)
    run = Path("runs") / text.removeprefix("run://") if text.startswith("run://") else Path(text)
    path = run / "reward_model" if (run / "reward_model" / HEAD).exists() else resolve(folder)
    if not (path / HEAD).exists():
        raise BadInput(
            f"{path} is no reward model", f"a folder with {HEAD} (train one with rl_strategy.type: reward_model)", "path"
        )
    adapter = (path / "adapter_config.json").exists()
    settings = ModelSettings(base_model_path=str(path), lora=LoraSettings() if adapter else None)
    model = load_reward_model(settings, "auto", device, 0)
    model.about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    model.renderer = load_renderer(path)
    return model.requires_grad_(False)  # type: ignore[return-value]
