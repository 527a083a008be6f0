"""The built-in engine: any Hugging Face causal LM in process, for training, evaluation and serving alike.

The module itself + one attention function that holds the KV + swapped linears + an inverse-CDF sampler; no forward per family. `run` is
lockstep: which rows share a step depends on the requests alone. `stream` lets requests join and leave between steps.

Example:
    >>> engine = BuiltinEngine.load(EngineSpec(model_path="models/tiny", version="run#0"))
    >>> engine.run([Request("q/0/0", (5, 6), SamplingParams(max_new_tokens=8, n=4))])
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from policyloop.engine import Ack, Delta, EngineSpec, Request, Status, Weights
from policyloop.engine.batch import Batch, Budget, PlainBatch, SharedBatch
from policyloop.engine.kv import ATTENTION, Prefill
from policyloop.engine.linear import dequantised
from policyloop.engine.prefixes import Prefixes
from policyloop.engine.randoms import row_keys
from policyloop.engine.rows import Row, StopText, TextRenderer
from policyloop.engine.sampling import check
from policyloop.engine.server import Server
from policyloop.engine.weights import OwnCopy, adapter_weights
from policyloop.errors import BadInput, StaleVersion
from policyloop.models.catalogue import base_of, is_quantised, resolve
from policyloop.models.policy import base_digest, packs_rows
from policyloop.models.template import load_renderer
from policyloop.types import Completion

log = logging.getLogger(__name__)
OPTIONS = ("template", "max_rows", "max_kv_tokens", "prefix_tokens")
MAX_ROWS = {"cpu": 64, "cuda": 256}  # more rows per step gain little there and hold memory
KV_BYTES = 1 << 30
PREFIX_BYTES = 1 << 28


class BuiltinEngine:
    """Owns `model`: its linears are swapped and its attention replaced. `base`: digest of the weights it was loaded from."""

    def __init__(
        self,
        model: PreTrainedModel,
        renderer: TextRenderer,
        version: str,
        base: str = "",
        max_rows: int | None = None,
        max_kv_tokens: int | None = None,
        prefix_tokens: int | None = None,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.renderer, self.version, self.base, self.digest = renderer, version, base, base
        self.copy = OwnCopy(model)
        self.shares = packs_rows(model.config) and prompts_can_be_shared(model)
        if not self.shares:
            log.warning("%s cannot share prompts between answers: correct, but slower", model.config.model_type)
        config = model.config.get_text_config()
        self.context = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
        rows = max_rows or MAX_ROWS.get(model.device.type, 64)
        self.budget = Budget(rows, max_kv_tokens or max(self.context, KV_BYTES // kv_bytes_per_token(model)))
        self._turn = threading.Lock()
        self.prefixes = Prefixes(prefix_tokens if prefix_tokens is not None else PREFIX_BYTES // kv_bytes_per_token(model))
        self._server = Server(self._new_served_batch, self._turn)

    @classmethod
    def load(cls, spec: EngineSpec) -> BuiltinEngine:
        """From a model or adapter folder, or whatever `models.catalogue.resolve` knows. options: see OPTIONS."""
        if unknown := set(spec.options) - set(OPTIONS):
            raise BadInput(f"engine option {min(unknown)}", ", ".join(OPTIONS), "rollout.engine_options")
        options: dict[str, Any] = dict(spec.options)
        given = resolve(spec.model_path)
        renderer = load_renderer(given, options.pop("template", None))
        adapter = given if (given / "adapter_config.json").exists() else None
        path = given if adapter is None else base_of(given)
        disable_progress_bar()  # a bar per model load says nothing and breaks plain logs
        quantised, dtype = is_quantised(path), getattr(torch, spec.dtype)
        model = AutoModelForCausalLM.from_pretrained(path, dtype="auto" if quantised else dtype, local_files_only=True)
        if quantised and spec.device == "cpu":
            model = dequantised(model, dtype)
        engine = cls(cast(Any, model).to(spec.device), renderer, spec.version, base_digest(path), **options)
        if adapter is not None:
            engine.publish(adapter_weights(adapter, spec.version, engine.base))
        return engine

    # --- lockstep -----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """All completions, request order then sample order; equal requests give equal bits."""
        start = time.monotonic()
        rows = [self._rows(r) for r in requests]
        waiting = deque(chunk for request in rows for chunk in self.budget.chunks(request))
        with self._turn:
            batch = self._new_batch()
            while waiting or batch.rows:
                batch.admit(waiting)
                batch.step()
        timing = {"total_s": time.monotonic() - start}
        return [row.completion(self.renderer, timing) for request in rows for row in request]

    def _rows(self, request: Request, show: Callable[[Delta], None] | None = None) -> list[Row]:
        """A request's rows, checked: sampling that means something, ids of the vocabulary, room left in the context."""
        p, ids = request.params, request.prompt_token_ids
        check(p)
        self._check_prompt(ids, 1)
        samples = range(request.first_sample, request.first_sample + p.n)
        stop = frozenset((*(() if p.ignore_eos else self.renderer.stop_ids), *p.stop_ids))
        limit = min(p.max_new_tokens, self.context - len(ids))

        def text() -> StopText | None:
            return StopText(self.renderer.stream(), p.stop) if p.stop or show else None

        keys = row_keys(p.seed, request.uid, samples)
        return [Row(request, s, key, limit, stop, text(), show) for s, key in zip(samples, keys, strict=True)]

    def _check_prompt(self, ids: Sequence[int], room: int) -> None:
        if not ids:
            raise BadInput("the prompt is empty", "at least one token", "the prompt")
        if len(ids) + room > self.context:
            raise BadInput(
                f"the prompt has {len(ids)} tokens", f"at most {self.context - room} (the model's context)", "the prompt"
            )
        if min(ids) < 0 or max(ids) >= self.vocabulary:
            odd = next(i for i in ids if not 0 <= i < self.vocabulary)
            raise BadInput(f"token id {odd} in the prompt", f"0 to {self.vocabulary - 1}", "the prompt")

    def _new_batch(self, prefixes: Prefixes | None = None) -> Batch:
        def began(row: Row) -> None:
            row.version = self.version

        return (SharedBatch if self.shares else PlainBatch)(self.model, self.budget, began, prefixes)

    def _new_served_batch(self) -> Batch:
        self.prefixes.clear()  # a batch begins anew after a failure: nothing of it is trusted
        return self._new_batch(self.prefixes)

    @torch.inference_mode()
    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probs (temperature 1) of `token_ids` after `prompt_ids`, in one pass."""
        if not token_ids:
            return []
        ids = [*prompt_ids, *token_ids]
        self._check_prompt(prompt_ids, len(token_ids))
        self._check_prompt(ids, 0)
        with self._turn:
            extra: dict[str, Any] = {"kv": Prefill([len(ids)])} if self.shares else {}
            given = torch.tensor([ids], device=self.model.device)
            logits = self.model(input_ids=given, use_cache=False, logits_to_keep=len(token_ids) + 1, **extra).logits[0, :-1]
        chosen = given[0, len(prompt_ids) :, None]
        # row by row: a float32 copy of all logits would be the largest tensor of the process
        return [float(row.float().log_softmax(-1)[at]) for row, at in zip(logits, chosen[:, 0], strict=True)]

    # --- weights ------------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def publish(self, weights: Weights) -> Ack:
        """A transaction: check and build everything, wait for running answers, swap, echo; on any error the old version stays."""
        if weights.base_digest != self.base:
            raise StaleVersion(f"{weights.version} was trained from another base", "weights of the base this engine loaded")
        change = self.copy.prepare(weights)
        with self._server.quiet(), self._turn:
            change()
            self.prefixes.clear()
            self.version, self.digest = weights.version, weights.digest
        return Ack(self.version, self.digest)

    # --- serving ------------------------------------------------------------------------------------------------------------

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Deltas of whole characters as they come, ended by one finish_reason per sample; closing the iterator frees the slot.
        Errors come before the first delta."""
        show = _Mailbox()
        return self._stream(self._rows(request, show), show)

    async def _stream(self, rows: list[Row], mailbox: _Mailbox) -> AsyncIterator[Delta]:
        arrived = mailbox.open()
        self._server.submit(list(self.budget.chunks(rows)))
        left = len(rows)
        try:
            while left:
                delta = await arrived.get()
                left -= delta.finish_reason is not None
                yield delta
        finally:
            self._server.cancel(rows)

    def status(self) -> Status:
        server = self._server
        running, waiting = len(server.batch.rows), sum(map(len, [*list(server.waiting), *server.arrived]))
        used = server.batch.tokens() / self.budget.tokens
        return Status(self.version, self.digest, running, waiting, used, server.beat_age_s, self.base, self.prefixes.found)

    def close(self, drain_s: float = 0.0) -> None:
        self._server.close(drain_s)


class _Mailbox:
    """Carries deltas from the engine's thread into the reader's event loop; a reader whose loop is gone misses them."""

    def open(self) -> asyncio.Queue[Delta]:
        self.loop, self.queue = asyncio.get_running_loop(), asyncio.Queue[Delta]()
        return self.queue

    def __call__(self, delta: Delta) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.queue.put_nowait, delta)


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Keys and values of one position in all layers."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * model.dtype.itemsize


@torch.inference_mode()
def prompts_can_be_shared(model: PreTrainedModel) -> bool:
    """Try it: two short prompts, three rows, two steps, through the shared attention and through the module's own. Where the two ways
    agree the shared one stays switched on; whatever an attention layer does beside attending (sinks, soft caps, shared layers) shows."""
    own = model.config._attn_implementation or "sdpa"
    low = 3 if model.config.get_text_config().vocab_size > 16 else 0
    prompts, more = (
        [[low + i for i in (1, 4, 2, 7, 5)], [low + 3, low + 6]],
        [[low + 8, low + 1], [low + 2, low + 9], [low + 5, low + 5]],
    )
    group = [0, 0, 1]
    rows = [torch.tensor([prompts[g] + tail], device=model.device) for g, tail in zip(group, more, strict=True)]
    want = torch.cat([model(input_ids=row, use_cache=False, logits_to_keep=3).logits for row in rows])
    try:
        model.set_attn_implementation(ATTENTION)
        batch = SharedBatch(model, Budget(3, 1 << 20), lambda row: None)
        state = Prefill([len(p) for p in prompts])
        got = [batch.prefill(state, prompts)[group]]
        batch.cache.add(state, [2, 1])
        got += [batch.decode([tail[t] for tail in more]) for t in range(2)]
        same = _agree(torch.stack(got, 1), want, model.dtype)
    except Exception as problem:
        log.info("shared prompts do not run on %s: %s", model.config.model_type, problem)
        same = False
    if not same:
        model.set_attn_implementation(own)
    return same


def _agree(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """By total variation between next-token distributions: the largest in float32. In bfloat16 the median: two right implementations can
    be 0.97 apart on a single meaningless prefix (seen with SmolLM2), while a wrong one is apart on most of them."""
    apart = (a.float().softmax(-1) - b.float().softmax(-1)).abs().sum(-1) / 2
    return bool(apart.max() < 1e-3 if dtype == torch.float32 else apart.median() < 0.2)
