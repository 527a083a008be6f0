"""`POST /v1/feedback`: what somebody says of one answer, checked, written down at whatever replica it reaches, acknowledged once on disk.

In: `{request_id, kind, value, user?}` and who sends it. Out: `{"object": "feedback", "request_id", "kind", "recorded": true}`.
Nothing is looked up here: the request may have been answered by another replica, or a week ago. Who may speak of what, repeats and
floods are settled when the journal is curated (docs/feedback.md); a sender's rate is the service's limit.

Example (any FastAPI application):
    >>> @app.post("/v1/feedback")
    ... def feedback(body: FeedbackBody, key: Annotated[Key, Depends(needs("feedback"))]) -> dict:
    ...     return accept(body, key.name, journal, label=key.may("label"))
"""

from __future__ import annotations

import math
import re
import time
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from policyloop.errors import BadInput, Unavailable
from policyloop.journal import Feedback
from policyloop.journal.writer import Journal

Kind = Literal["thumb", "score", "answer", "edit", "outcome"]
THUMBS: dict[Any, float] = {"up": 1.0, "down": -1.0, 1: 1.0, 0: -1.0, -1: -1.0}  # true is 1, false is 0
MEANS: dict[Kind, str] = {
    "thumb": '"up" or "down" (also 1 and -1, true and false)',
    "score": "a number from 0 to 1",
    "outcome": "true, false or a number from 0 to 1: what came of it",
    "answer": "the right answer as text or number, at most 4,000 characters",
    "edit": "the answer as it should have been, at most 65,536 characters",
}
LONGEST: dict[Kind, int] = {"answer": 4_000, "edit": 65_536}


class FeedbackBody(BaseModel):
    """What somebody says of one answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    request_id: str = Field(min_length=1, max_length=128, description="The id of the reply (x-request-id, or its `id`).")
    kind: Kind
    value: bool | int | float | str = Field(description="; ".join(f"{kind}: {means}" for kind, means in MEANS.items()))
    user: str = Field("", max_length=256, description="Who says it, where many people share one key.")


def accept(body: FeedbackBody, key: str, journal: Journal | None, *, label: bool = False) -> dict[str, Any]:
    """Write it down. `key`: the name of the sender's key; `label`: that key may label. Errors: BadInput, Unavailable (no journal, full)."""
    if journal is None:
        raise Unavailable("this service keeps no journal, so feedback has nowhere to go", "a service with a `journal` table")
    said = Feedback(
        request_id=body.request_id,
        at=time.time(),
        key=key,
        kind=body.kind,
        value=value_of(body.kind, body.value),
        user=body.user,
        label=label,
    )
    journal.append(said)
    return {"object": "feedback", "request_id": body.request_id, "kind": body.kind, "recorded": True}


def value_of(kind: Kind, value: Any) -> float | str:
    """One spelling per kind. Errors: BadInput."""
    if kind == "thumb" and not isinstance(value, float) and value in THUMBS:
        return THUMBS[value]
    if kind in ("score", "outcome") and not isinstance(value, str) and (kind == "outcome" or not isinstance(value, bool)):
        number = float(value)
        if math.isfinite(number) and 0 <= number <= 1:
            return number
    if kind in LONGEST and not isinstance(value, bool):
        text = str(value).strip()
        if text and len(text) <= LONGEST[kind] and not re.search(r"[\ud800-\udfff\0]", text):
            return text
    shown = repr(value)
    raise BadInput(f"value {shown[:80]}{'…' if len(shown) > 80 else ''} of a {kind}", MEANS[kind], "value")
