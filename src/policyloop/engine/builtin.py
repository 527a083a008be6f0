"""The built-in engine: any Hugging Face causal LM in process, for training, evaluation and serving alike.

Module + one attention function that holds the KV + swapped linears + an inverse-CDF sampler; no forward per family. `run` is lockstep: which
rows share a step depends on the requests alone. `stream` lets requests join and leave between steps.

Example:
    >>> engine = BuiltinEngine.load(EngineSpec(model_path="models/tiny", version="run#0"))
    >>> engine.run([Request("q/0/0", (5, 6), SamplingParams(max_new_tokens=8, n=4))])
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from policyloop.engine import Ack, Delta, EngineSpec, Request, Status, Weights
from policyloop.engine.kv import ATTENTION, Cache, Prefill
from policyloop.engine.linear import FrozenLinear, linears, pack, swap
from policyloop.engine.randoms import row_keys, uniforms
from policyloop.engine.sampling import Truncation, sample
from policyloop.errors import BadInput, StaleVersion, Unavailable
from policyloop.models.policy import base_digest, digest, packs_rows
from policyloop.types import Completion, FinishReason, SamplingParams


class TextRenderer(Protocol):
    """What the engine needs of `models.template.Renderer`."""

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass
class Row:
    """One completion on its way."""

    request: Request
    sample: int
    key: np.uint64
    limit: int
    stop_ids: frozenset[int]
    sink: Callable[[Row], None] | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str | None = None
    reason: FinishReason | None = None

    @property
    def params(self) -> SamplingParams:
        return self.request.params


class BuiltinEngine:
    """One copy of the weights, its own; LoRA is merged into it at every publish, from the base, so nothing drifts."""

    def __init__(self, model: PreTrainedModel, renderer: TextRenderer, version: str, base: str, max_kv_tokens: int = 65536) -> None:
        self.model = model.eval().requires_grad_(False)
        self.renderer, self.version, self.base, self.digest = renderer, version, base, base
        self.max_kv_tokens = max_kv_tokens
        self.packs = packs_rows(model.config)
        self.context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
        self.vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
        if self.packs:
            model.set_attn_implementation(ATTENTION)
        swap(model)
        self.linears = linears(model)
        self._merged: set[str] = set()
        self._lock = threading.Lock()
        self._server = Server(self)
        self._beat = time.monotonic()

    @classmethod
    def load(cls, spec: EngineSpec) -> BuiltinEngine:
        """From a model folder. options: `template`, `max_kv_tokens`."""
        from policyloop.models.template import load_renderer

        known = {"template", "max_kv_tokens"}
        if unknown := set(spec.options) - known:
            raise BadInput(f"engine option {sorted(unknown)[0]}", ", ".join(sorted(known)), "rollout.engine_options")
        path = Path(spec.model_path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, spec.dtype), local_files_only=True).to(spec.device)
        renderer = load_renderer(path, cast("str | None", spec.options.get("template")))
        budget = cast(int, spec.options.get("max_kv_tokens", 65536))
        return cls(model, renderer, spec.version, base_digest(path), budget)

    # --- lockstep -----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """All completions, request order then sample order; equal requests give equal bits."""
        start = time.monotonic()
        rows = [self.rows_of(r) for r in requests]
        with self._lock:
            if self.packs:
                batch = Batcher(self)
                waiting = deque(rows)
                while waiting or batch.rows:
                    batch.admit(waiting)
                    batch.step()
                    self._beat = time.monotonic()
            else:
                for group in rows:
                    self._plain(group)
            version = self.version
        timing = {"total_s": time.monotonic() - start}
        return [self.completion(row, version, timing) for group in rows for row in group]

    def rows_of(self, request: Request, sink: Callable[[Row], None] | None = None) -> list[Row]:
        """A request's rows, checked: prompt not empty, ids inside the vocabulary, room left in the context."""
        p, ids = request.params, request.prompt_token_ids
        if not ids:
            raise BadInput("the prompt is empty", "at least one token", "the prompt")
        if len(ids) >= self.context:
            raise BadInput(f"the prompt has {len(ids)} tokens", f"fewer than the model's context of {self.context}", "the prompt")
        if max(ids) >= self.vocabulary or min(ids) < 0:
            raise BadInput(f"token id {max(ids)}", f"0 to {self.vocabulary - 1}", "the prompt")
        samples = range(request.first_sample, request.first_sample + p.n)
        stop = frozenset((*self.renderer.stop_ids, *p.stop_ids))
        limit = min(p.max_new_tokens, self.context - len(ids))
        return [Row(request, s, key, limit, stop, sink) for s, key in zip(samples, row_keys(p.seed, request.uid, samples), strict=True)]

    def completion(self, row: Row, version: str, timing: Mapping[str, float]) -> Completion:
        text = self.text_of(row) if row.text is None else row.text
        logprobs = tuple(row.logprobs) if row.params.logprobs else (float("nan"),) * len(row.ids)
        return Completion(
            row.request.prompt_token_ids, tuple(row.ids), logprobs, row.reason or "abort", version, text, timing=timing
        )

    def text_of(self, row: Row) -> str:
        ids = row.ids[:-1] if row.ids and row.ids[-1] in row.stop_ids else row.ids
        return self.renderer.decode(ids)

    def advance(self, rows: Sequence[Row], logits_RV: Tensor) -> list[bool]:
        """Sample each row's next token and settle whether it goes on."""
        u = uniforms(np.array([r.key for r in rows], dtype=np.uint64), [len(r.ids) for r in rows])
        how = Truncation.of([r.params for r in rows])
        tokens, logprobs = sample(logits_RV.cpu(), torch.from_numpy(u), how)
        alive = []
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.reason = self._finished(row, token)
            if row.sink is not None:
                row.sink(row)
            alive.append(row.reason is None)
        return alive

    def _finished(self, row: Row, token: int) -> FinishReason | None:
        if token in row.stop_ids:
            return "stop"
        if row.params.stop:
            text = self.renderer.decode(row.ids)
            found = [at for s in row.params.stop if (at := text.find(s)) >= 0]
            if found:
                row.text = text[: min(found)]
                return "stop"
        return "length" if len(row.ids) >= row.limit else None

    def _plain(self, rows: list[Row]) -> None:
        """Models whose layers cannot share a prompt: the module's own cache, one prompt at a time, finished rows dragged along."""
        prompt = torch.tensor([rows[0].request.prompt_token_ids] * len(rows), device=self.model.device)
        out = self.model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        while True:
            live = [r for r in rows if r.reason is None]
            self.advance(live, out.logits[[i for i, r in enumerate(rows) if r.reason is None], -1])
            if all(r.reason is not None for r in rows):
                return
            last = torch.tensor([[r.ids[-1]] for r in rows], device=self.model.device)
            out = self.model(input_ids=last, past_key_values=out.past_key_values, use_cache=True)

    # --- weights ------------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def publish(self, weights: Weights) -> Ack:
        """A transaction: finite-check, build everything, then swap; on any error the old version stays."""
        if weights.base_digest != self.base:
            raise StaleVersion(f"{weights.version} was trained from another base", "weights of the base this engine loaded")
        bad = [name for name, t in weights.tensors.items() if not bool(torch.isfinite(t).all())]
        if bad:
            raise ValueError(f"{weights.version} is not finite in {bad[0]}; {self.version} stays")
        if digest(weights.tensors) != weights.digest:
            raise ValueError(f"{weights.version} arrived damaged: its digest differs; {self.version} stays")
        change = self._merge(weights) if weights.kind == "lora" else self._replace(weights)
        with self._lock:
            change()
            self.version, self.digest = weights.version, weights.digest
        return Ack(self.version, self.digest)

    def _merge(self, weights: Weights) -> Callable[[], None]:
        """W + scaling · B A in fp32, cast and packed; modules merged before and not now go back to the base."""
        names = {n.removesuffix(".lora_A") for n in weights.tensors if n.endswith(".lora_A")}
        if unknown := names - set(self.linears):
            raise ValueError(f"the engine has no linear {sorted(unknown)[0]}; {self.version} stays")
        fresh: dict[str, Tensor] = {}
        for name in names:
            a, b = weights.tensors[f"{name}.lora_A"].float(), weights.tensors[f"{name}.lora_B"].float()
            base = self.linears[name].weight
            fresh[name] = (base.float() + weights.scaling * (b.to(base.device) @ a.to(base.device))).to(base.dtype)
        prepared = {name: pack(w) for name, w in fresh.items()}

        def change() -> None:
            for name in self._merged - names:
                self.linears[name].use(self.linears[name].weight, pack(self.linears[name].weight))
            for name, packed in prepared.items():
                self.linears[name].use(fresh[name], packed)
            self._merged = names

        return change

    def _replace(self, weights: Weights) -> Callable[[], None]:
        own = {**dict(self.model.named_parameters()), **{f"{n}.weight": m.weight for n, m in self.linears.items()}}
        biases = {f"{n}.bias": m.bias for n, m in self.linears.items() if m.bias is not None}
        if unknown := set(weights.tensors) - set(own) - set(biases):
            raise ValueError(f"the engine has no parameter {sorted(unknown)[0]}; {self.version} stays")

        def change() -> None:
            for name, value in weights.tensors.items():
                target = own.get(name, biases.get(name))
                assert target is not None
                target.copy_(value)
            for module in self.linears.values():
                module.use(module.weight, pack(module.weight))

        return change

    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probs (temperature 1) of `token_ids` after `prompt_ids`, in one pass."""
        with torch.inference_mode(), self._lock:
            ids = torch.tensor([[*prompt_ids, *token_ids]], device=self.model.device)
            extra: dict[str, Any] = {"kv": Prefill()} if self.packs else {}
            logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=len(token_ids) + 1, **extra).logits[0, :-1]
            logp = logits.float().log_softmax(-1)
            return logp.gather(1, torch.tensor(token_ids, device=logp.device)[:, None])[:, 0].tolist()

    # --- serving ------------------------------------------------------------------------------------------------------------

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Deltas of whole characters as they come; closing the iterator frees the slot."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Row | BaseException] = asyncio.Queue()
        rows = self.rows_of(request, lambda row: loop.call_soon_threadsafe(arrived.put_nowait, replace(row, ids=list(row.ids))))
        self._server.submit(rows)
        cutters = {row.sample: TextCutter(self, row) for row in rows}
        left = len(rows)
        try:
            while left:
                row = await arrived.get()
                if isinstance(row, BaseException):
                    raise row
                delta = cutters[row.sample].delta(row)
                left -= row.reason is not None
                if delta is not None:
                    yield delta
        finally:
            self._server.cancel(rows)

    def status(self) -> Status:
        running, waiting, used = self._server.load()
        return Status(self.version, self.digest, running, waiting, used / self.max_kv_tokens, time.monotonic() - self._beat)

    def close(self, drain_s: float = 0.0) -> None:
        self._server.close(drain_s)


class Batcher:
    """The rows that share steps. `admit` prefills whole requests while the KV budget lasts; `step` feeds one token per row."""

    def __init__(self, engine: BuiltinEngine) -> None:
        self.engine = engine
        self.cache = Cache()
        self.rows: list[Row] = []

    def admit(self, waiting: deque[list[Row]]) -> None:
        """Requests in order; the first one always fits, however large."""
        chosen: list[list[Row]] = []
        held = sum(r.limit for r in self.rows) + int(self.cache.prompt_G.sum())
        while waiting:
            group = waiting[0]
            need = len(group[0].request.prompt_token_ids) + sum(r.limit for r in group)
            if (chosen or self.rows) and held + need > self.engine.max_kv_tokens:
                break
            held += need
            chosen.append(waiting.popleft())
        for part in _prefill_parts(chosen):
            self._prefill(part)

    def _prefill(self, groups: list[list[Row]]) -> None:
        """Prompts once each, right-padded; every row's first token comes from its prompt's last position."""
        engine, model = self.engine, self.engine.model
        prompts = [g[0].request.prompt_token_ids for g in groups]
        longest = max(map(len, prompts))
        ids = torch.tensor([[*p, *(0,) * (longest - len(p))] for p in prompts], device=model.device)
        state = Prefill()
        positions = torch.arange(longest, device=model.device)[None].expand(len(prompts), -1)
        hidden = _body(model)(input_ids=ids, position_ids=positions, use_cache=False, kv=state).last_hidden_state
        last = hidden[torch.arange(len(prompts)), torch.tensor([len(p) - 1 for p in prompts])]
        counts = torch.tensor([len(g) for g in groups])
        logits = _logits(model, last).repeat_interleave(counts.to(last.device), 0)
        self.cache.add(state, [len(p) for p in prompts], counts.tolist())
        fresh = [row for g in groups for row in g]
        alive = engine.advance(fresh, logits)
        self._keep([True] * len(self.rows) + alive, [*self.rows, *fresh])

    def step(self) -> None:
        """One more token for every row."""
        if not self.rows:
            return
        model = self.engine.model
        ids = torch.tensor([[r.ids[-1]] for r in self.rows], device=model.device)
        positions = self.cache.begin_step()[:, None].to(model.device)
        hidden = _body(model)(input_ids=ids, position_ids=positions, use_cache=False, kv=self.cache).last_hidden_state
        self.cache.end_step()
        alive = self.engine.advance(self.rows, _logits(model, hidden[:, 0]))
        self._keep(alive, self.rows)

    def drop(self, gone: set[int]) -> None:
        """Rows (by id) whose reader left."""
        self._keep([id(r) not in gone for r in self.rows], self.rows)

    def _keep(self, alive: Sequence[bool], rows: Sequence[Row]) -> None:
        self.rows = [r for r, a in zip(rows, alive, strict=True) if a]
        if not all(alive):
            self.cache.keep(torch.tensor([i for i, a in enumerate(alive) if a], dtype=torch.int64))
            if not self.rows:
                self.cache = Cache()


def _prefill_parts(groups: list[list[Row]], budget: int = 8192) -> Iterator[list[list[Row]]]:
    """Prompts of one padded forward: at most `budget` positions."""
    part: list[list[Row]] = []
    longest = 0
    for group in groups:
        length = len(group[0].request.prompt_token_ids)
        if part and max(longest, length) * (len(part) + 1) > budget:
            yield part
            part, longest = [], 0
        part.append(group)
        longest = max(longest, length)
    if part:
        yield part


def _body(model: PreTrainedModel) -> Any:
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The head as the model itself applies it: with its scale and its soft cap."""
    config = model.config.get_text_config()
    logits = cast(FrozenLinear, model.get_output_embeddings())(hidden).float()
    if (scale := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / scale
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits


class TextCutter:
    """Turns a growing row into deltas: holds back an unfinished character and what may become a stop string."""

    def __init__(self, engine: BuiltinEngine, row: Row) -> None:
        self.engine, self.sent, self.tokens = engine, 0, 0
        self.version, self.longest = engine.version, max((len(s) for s in row.params.stop), default=0)

    def delta(self, row: Row) -> Delta | None:
        text = row.text if row.text is not None else self.engine.text_of(row)
        ready = text if row.reason is not None else self._safe(text, row.params.stop)
        if len(ready) <= self.sent and row.reason is None:
            return None
        piece, ids, logprobs = ready[self.sent :], row.ids[self.tokens :], row.logprobs[self.tokens : len(row.ids)]
        self.sent, self.tokens = max(self.sent, len(ready)), len(row.ids)
        return Delta(tuple(ids), tuple(logprobs), piece, row.reason, self.version, row.sample)

    def _safe(self, text: str, stops: Sequence[str]) -> str:
        if text.endswith("�"):
            text = text.rstrip("�")
        held = max((k for s in stops for k in range(1, len(s)) if text.endswith(s[:k])), default=0)
        return text[: len(text) - held] if held else text


class Server:
    """One background thread that steps whatever was submitted; starts with the first stream."""

    def __init__(self, engine: BuiltinEngine) -> None:
        self.engine = engine
        self.inbox: queue.Queue[tuple[str, list[Row]] | None] = queue.Queue()
        self.waiting: deque[list[Row]] = deque()
        self.batch: Batcher | None = None
        self.thread: threading.Thread | None = None
        self.closed = False

    def submit(self, rows: list[Row]) -> None:
        if self.closed:
            raise Unavailable("the engine is closing", "another engine")
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="engine", daemon=True)
            self.thread.start()
        self.inbox.put(("add", rows))

    def cancel(self, rows: list[Row]) -> None:
        if any(r.reason is None for r in rows):
            self.inbox.put(("drop", rows))

    def load(self) -> tuple[int, int, int]:
        batch = self.batch
        return (0, len(self.waiting), 0) if batch is None else (len(batch.rows), len(self.waiting), batch.cache.tokens())

    def close(self, drain_s: float) -> None:
        self.closed = True
        if self.thread is not None:
            self.inbox.put(None)
            self.thread.join(drain_s if drain_s > 0 else 5.0)

    @torch.inference_mode()
    def _work(self) -> None:
        self.batch = Batcher(self.engine)
        while True:
            idle = not self.batch.rows and not self.waiting
            try:
                message = self.inbox.get(block=idle)
            except queue.Empty:
                message = ("", [])
            if message is None and idle:
                return
            if message is None:
                self.inbox.put(None)
            elif message[0]:
                self._handle(*message)
                continue
            with self.engine._lock:
                self._advance()

    def _handle(self, what: str, rows: list[Row]) -> None:
        assert self.batch is not None
        if what == "add":
            self.waiting.append(rows)
            return
        gone = {id(r) for r in rows}
        self.batch.drop(gone)
        self.waiting = deque(g for g in self.waiting if id(g[0]) not in gone)

    def _advance(self) -> None:
        assert self.batch is not None
        if self.engine.packs:
            self.batch.admit(self.waiting)
            self.batch.step()
        elif self.waiting:
            self.engine._plain(self.waiting.popleft())
        self.engine._beat = time.monotonic()
