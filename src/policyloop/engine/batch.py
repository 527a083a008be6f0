"""Batches: the rows that share steps. Requests join and rows leave between steps; which ones depends on the requests alone, never on a clock.

`SharedBatch` prefills a prompt once per request and lets its rows share it. `PlainBatch` is for models whose layers cannot (convolutions,
recurrences): the module's own cache, one per request. Both: `admit(waiting)`, `step()`, `drop(rows)`, `rows`, `tokens()`.

Example:
    >>> while waiting or batch.rows:
    ...     batch.admit(waiting)   # waiting: deque of lists of rows, one list per request
    ...     batch.step()           # one more token for every row
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from policyloop.engine.kv import Cache, Prefill
from policyloop.engine.prefixes import Prefixes
from policyloop.engine.randoms import uniforms
from policyloop.engine.rows import Row
from policyloop.engine.sampling import Truncation, sample

PREFILL_TOKENS = 8192  # prompt tokens of one forward


@dataclass(frozen=True, slots=True)
class Budget:
    """What may run at once: rows, and positions of prompts and answers together, every answer counted at its limit."""

    rows: int
    tokens: int

    def chunks(self, rows: list[Row]) -> Iterator[list[Row]]:
        """A request's rows in pieces that fit; a single row always does."""
        size = max(1, min(self.rows, (self.tokens - len(rows[0].request.prompt_token_ids)) // rows[0].limit))
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def take(self, waiting: deque[list[Row]], running: Sequence[Row], held: int) -> list[list[Row]]:
        """The next requests in order, as many as fit; the first one fits where nothing runs."""
        chosen: list[list[Row]] = []
        rows = len(running)
        while waiting:
            need = cost(waiting[0])
            if rows and (rows + len(waiting[0]) > self.rows or held + need > self.tokens):
                break
            rows, held = rows + len(waiting[0]), held + need
            chosen.append(waiting.popleft())
        return chosen


def cost(rows: Sequence[Row]) -> int:
    """Positions a request needs at most: its prompt once, its answers at their limits."""
    return len(rows[0].request.prompt_token_ids) + sum(r.limit for r in rows)


def advance(rows: Sequence[Row], logits_RV: Tensor) -> list[int]:
    """Sample each row's next token; the indices of the rows that go on."""
    u = uniforms(np.array([r.key for r in rows], dtype=np.uint64), [len(r.ids) for r in rows])
    tokens, logprobs = sample(logits_RV.cpu(), torch.from_numpy(u), Truncation.of([r.params for r in rows]))
    for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
        if math.isnan(logprob):  # the logits are not finite: nothing was sampled
            row.end("error")
        else:
            row.push(token, logprob)
    return [i for i, row in enumerate(rows) if row.reason is None]


class Batch(Protocol):
    @property
    def rows(self) -> list[Row]: ...

    def admit(self, waiting: deque[list[Row]]) -> None: ...

    def step(self) -> None: ...

    def drop(self, gone: Collection[Row]) -> None: ...

    def tokens(self) -> int: ...


class SharedBatch:
    """All rows in one forward a step; see `kv`."""

    def __init__(
        self, model: PreTrainedModel, budget: Budget, began: Callable[[Row], None], prefixes: Prefixes | None = None
    ) -> None:
        self.model, self.budget, self.began, self.prefixes = model, budget, began, prefixes
        self.cache = Cache()
        self.rows: list[Row] = []  # in the cache's order

    def admit(self, waiting: deque[list[Row]]) -> None:
        for part in _parts(self.budget.take(waiting, self.rows, self.tokens())):
            for row in (fresh := [row for rows in part for row in rows]):
                self.began(row)
            prompts = [rows[0].request.prompt_token_ids for rows in part]
            heads = None if self.prefixes is None else [self.prefixes.find(ids) for ids in prompts]
            state = Prefill([len(ids) for ids in prompts], heads)
            logits = self.prefill(state, prompts)
            if self.prefixes is not None:
                self.prefixes.keep(prompts, state)
            samples = [len(rows) for rows in part]
            self.cache.add(state, samples)
            alive = advance(fresh, logits.repeat_interleave(torch.tensor(samples, device=logits.device), 0))
            before = len(self.rows)
            self._keep([*range(before), *(before + i for i in alive)], [*self.rows, *fresh])

    def prefill(self, state: Prefill, prompts: Sequence[Sequence[int]]) -> Tensor:
        """(prompts, V) logits after each prompt's last token; all prompts lie in one row, without padding."""
        fed = list(zip(prompts, state.fed, strict=True))
        ids = [i for p, n in fed for i in p[len(p) - n :]]
        positions = [t for p, n in fed for t in range(len(p) - n, len(p))]
        ends = np.cumsum(state.fed) - 1
        return self._forward(ids, positions, state, False, torch.from_numpy(ends).to(self.model.device))[0]

    def step(self) -> None:
        if self.rows:
            self._keep(advance(self.rows, self.decode([r.ids[-1] for r in self.rows])), self.rows)

    def decode(self, ids: Sequence[int]) -> Tensor:
        """(R, V) logits after one more token per row."""
        positions = self.cache.begin_step()
        logits = self._forward(ids, positions, self.cache, True, 1)[:, -1]
        self.cache.end_step()
        return logits

    def drop(self, gone: Collection[Row]) -> None:
        self._keep([i for i, row in enumerate(self.rows) if row not in gone], self.rows)

    def tokens(self) -> int:
        prompts = sum(self.cache.prompts)
        return prompts + sum(r.limit for r in self.rows)

    def _forward(
        self, ids: Sequence[int], positions: Sequence[int], kv: Prefill | Cache, rows: bool, keep: int | Tensor
    ) -> Tensor:
        """The model itself, head included; `rows`: one token per row, else one row of tokens."""
        shape = (-1, 1) if rows else (1, -1)
        device = self.model.device
        return self.model(
            input_ids=torch.tensor(ids, device=device).view(shape),
            position_ids=torch.tensor(positions, device=device).view(shape),
            use_cache=False,
            logits_to_keep=keep,
            kv=kv,
        ).logits

    def _keep(self, alive: Sequence[int], rows: Sequence[Row]) -> None:
        order = self.cache.keep(alive) if 0 < len(alive) < len(rows) else alive
        self.rows = [rows[i] for i in order]
        if not self.rows:
            self.cache = Cache()


class PlainBatch:
    """One cache per request, the module's own; correct for every causal LM with a DynamicCache, not fast. Keeps no prefixes."""

    def __init__(
        self, model: PreTrainedModel, budget: Budget, began: Callable[[Row], None], prefixes: Prefixes | None = None
    ) -> None:
        self.model, self.budget, self.began = model, budget, began
        self.groups: list[tuple[list[Row], Any]] = []

    @property
    def rows(self) -> list[Row]:
        return [row for rows, _ in self.groups for row in rows]

    def admit(self, waiting: deque[list[Row]]) -> None:
        for rows in self.budget.take(waiting, self.rows, self.tokens()):
            for row in rows:
                self.began(row)
            logits, cache = self._forward([rows[0].request.prompt_token_ids], None)
            alive = advance(rows, logits.expand(len(rows), -1))
            cache.reorder_cache(
                torch.zeros(len(alive), dtype=torch.int64, device=self.model.device)
            )  # the prompt's, once per row
            self._put([*self.groups, ([rows[i] for i in alive], cache)])

    def step(self) -> None:
        groups = []
        for rows, cache in self.groups:
            logits, cache = self._forward([[row.ids[-1]] for row in rows], cache)
            groups.append(self._keep(rows, cache, advance(rows, logits)))
        self._put(groups)

    def drop(self, gone: Collection[Row]) -> None:
        stay = [[i for i, row in enumerate(rows) if row not in gone] for rows, _ in self.groups]
        self._put([self._keep(rows, cache, alive) for (rows, cache), alive in zip(self.groups, stay, strict=True)])

    def tokens(self) -> int:
        return sum(cost(rows) for rows, _ in self.groups)

    def _forward(self, ids: Sequence[Sequence[int]], cache: Any) -> tuple[Tensor, Any]:
        given = torch.tensor(ids, device=self.model.device)
        out = self.model(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1], out.past_key_values

    def _keep(self, rows: list[Row], cache: Any, alive: Sequence[int]) -> tuple[list[Row], Any]:
        if len(alive) < len(rows):
            cache.reorder_cache(torch.tensor(alive, dtype=torch.int64, device=self.model.device))
        return [rows[i] for i in alive], cache

    def _put(self, groups: Sequence[tuple[list[Row], Any]]) -> None:
        self.groups = [(rows, cache) for rows, cache in groups if rows]


def _parts(requests: Sequence[list[Row]]) -> Iterator[list[list[Row]]]:
    """Requests whose prompts go through one forward together."""
    part: list[list[Row]] = []
    size = 0
    for rows in requests:
        length = len(rows[0].request.prompt_token_ids)
        if part and size + length > PREFILL_TOKENS:
            yield part
            part, size = [], 0
        part.append(rows)
        size += length
    if part:
        yield part
