"""The journal: what was asked, what was answered with which weights and probabilities, and what people said of it. No torch.

Written by serve, gateway and rollout (`writer`), shipped to the store as Parquet (`shipping`), joined by request id when it is curated
(`collect`). Off unless a `journal` table is given. Personal data is cut out before anything touches a disk (`redact`); a record it was
cut out of keeps its text with the holes and loses its token ids and log-probs, which spell the text.

    request --serve--> Journal.offer(record) --redact--> segment on disk --seal--> store: journal/records/<day>/*.parquet
    POST /v1/feedback --> feedback.accept(...) --redact--> segment, fsync, reply --> store: journal/feedback/<day>/*.parquet

Example:
    >>> journal = open_journal(JournalSettings(folder="journal", store="s3://bucket/store"))
    >>> journal.offer({"request_id": "r1", "model": "m", "version": "m@3", "prompt": "2+3=", "text": "5", "token_ids": [9], ...})
    True
    >>> journal.close()     # sealed and shipped
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from policyloop.errors import BadInput
from policyloop.types import settings

if TYPE_CHECKING:
    from policyloop.journal.writer import Journal

SOURCES = ("serve", "rollout", "canary", "shadow")


@settings
class JournalSettings:
    """What is written down of served requests. Without this table nothing is.

    folder: where segments lie until they are shipped; one folder may serve many processes. store: where they are shipped to (a folder,
    s3://bucket/prefix); null = POLICYLOOP_STORE, else `store`. sample: share of requests, by the hash of the request id (so serve and
    gateway choose the same ones). redact: cut personal data out before writing. phone_regions: whose phone numbers are known without a
    country code. recognisers: `module:function` of your own, text -> (from, to, kind). fsync: `always` before anything is acknowledged;
    `never` leaves it to the system (a killed process still loses nothing, a power cut may). segment_bytes, segment_s: when a segment is
    sealed and shipped. max_local_bytes: what may wait for a store that is away; beyond it new records are refused, none is thrown away.
    max_age_days: older rows are no longer read and their files are deleted. queue: records that may wait in memory.
    """

    folder: str = "journal"
    store: str | None = None
    sample: float = 1.0
    redact: bool = True
    phone_regions: tuple[str, ...] = ("CN", "US")
    recognisers: tuple[str, ...] = ()
    fsync: Literal["always", "never"] = "always"
    segment_bytes: int = 8 << 20
    segment_s: float = 60.0
    max_local_bytes: int = 1 << 30
    max_age_days: float = 90.0
    queue: int = 10_000

    def __post_init__(self) -> None:
        if not 0 <= self.sample <= 1:
            raise BadInput(f"journal.sample = {self.sample}", "0 to 1", "journal.sample")
        for name in ("segment_bytes", "segment_s", "max_local_bytes", "max_age_days", "queue"):
            if not getattr(self, name) > 0:
                raise BadInput(f"journal.{name} = {getattr(self, name)}", "a number above 0", f"journal.{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One answered request. `at`: seconds since 1970. `prompt`: text, or messages as role and content. `text`: the answer as its reader
    saw it. `tokens`: how many were generated (kept where the ids are not). `target`: the right answer where the request brought one.
    `key`, `user`, `session`: who asked, as names, never as secrets. NaN log-probs are missing ones."""

    request_id: str
    at: float
    model: str = ""
    version: str = ""
    key: str = ""
    user: str = ""
    session: str = ""
    prompt: str | list[dict[str, str]] = ""
    text: str = ""
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tokens: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    latency_s: float = math.nan
    redacted: bool = False
    source: str = "serve"
    target: str | None = None

    @staticmethod
    def of(row: Mapping[str, Any]) -> Record:
        """A record from what a service knows; what it does not know is left empty. Errors: BadInput for what would not be readable."""
        known = {f.name for f in fields(Record)}
        values = {k: v for k, v in row.items() if k in known and v is not None}
        if not isinstance(values.get("request_id"), str) or not values["request_id"]:
            raise BadInput("a journal record without request_id", "the id that the reply carried")
        values["at"] = seconds(values.get("at"))
        prompt = values.get("prompt", row.get("messages", ""))
        values["prompt"] = prompt if isinstance(prompt, str) else [_message(m) for m in prompt]
        for name in ("prompt_token_ids", "token_ids", "logprobs"):
            values[name] = list(values.get(name, ()))
        if values["logprobs"] and len(values["logprobs"]) != len(values["token_ids"]):
            raise BadInput(
                f"request {values['request_id']}: {len(values['logprobs'])} log-probs of {len(values['token_ids'])} tokens",
                "one each",
            )
        values.setdefault("tokens", len(values["token_ids"]))
        values["sampling"] = dict(values.get("sampling", {}))
        return Record(**values)

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What somebody said of one request. `value`: thumb 1 or -1 · score, outcome in [0, 1] · answer, edit text. `label`: the key may
    label (it speaks of anybody's requests and is not capped)."""

    request_id: str
    at: float
    key: str
    kind: str
    value: float | str
    user: str = ""
    label: bool = False

    def row(self) -> dict[str, Any]:
        return asdict(self)


def seconds(at: Any) -> float:
    """Seconds since 1970 from a number, an ISO time or None (now)."""
    if isinstance(at, str):
        return dt.datetime.fromisoformat(at).timestamp()
    return time.time() if at is None else float(at)


def _message(message: Any) -> dict[str, str]:
    """A message of ours, of pydantic or of JSON; content in parts becomes its text."""
    get = message.get if isinstance(message, Mapping) else lambda name, default=None: getattr(message, name, default)
    content = get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return {"role": str(get("role")), "content": content}


def open_journal(chosen: JournalSettings | None) -> Journal | None:
    """The journal of this process, or none where it was not asked for."""
    if chosen is None:
        return None
    from policyloop.journal.writer import Journal

    return Journal(chosen)
