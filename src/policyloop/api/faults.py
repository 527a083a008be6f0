"""Problems to HTTP: one sentence, OpenAI's shape, the right status, a computed Retry-After; nothing internal leaves.

In: a Problem, or what FastAPI found wrong with a request. Out: (status, body, headers).

Example:
    >>> fault(BadInput("temperature -1", "0 or more", "temperature"))
    (400, {'error': {'message': 'temperature -1: allowed is 0 or more', 'type': 'invalid_request_error', 'param': 'temperature', ...}}, {})
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from policyloop.api import printable
from policyloop.errors import BadInput, Problem

Fault = tuple[int, dict[str, Any], dict[str, str]]
TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
PATIENCE_S = 1.0  # Retry-After where nobody computed one


def fault(problem: Problem) -> Fault:
    """A Problem's sentence without `where`, which speaks of config files; a field's name goes to `param`."""
    param = problem.where if re.fullmatch(r"[a-z_]\w*(\[\d+\])?(\.\w+(\[\d+\])?)*", problem.where) else None
    message = f"{problem.given}: allowed is {problem.allowed}" if problem.allowed else problem.given
    return error(problem.http_status, message, _code(problem), param, getattr(problem, "retry_after_s", None))


def error(
    status: int, message: str, code: str | None = None, param: str | None = None, retry_after_s: float | None = None
) -> Fault:
    """The JSON every refusal has."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"error": {"message": printable(message, 600), "type": kind, "param": param, "code": code}}
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(PATIENCE_S if retry_after_s is None else retry_after_s)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return status, body, headers


def internal() -> Fault:
    """A bug: the traceback is in the log under the request's id, never in the reply."""
    return error(500, "the server failed on this request; its log has the reason under the request id", "internal_error")


def unreadable(problems: Sequence[Mapping[str, Any]]) -> BadInput:
    """The first thing that is wrong with a body, as one sentence."""
    first = problems[0] if problems else {}
    where = [part for part in first.get("loc", ()) if part not in ("body", "query", "path", "header")]
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in where if p == p and not _branch(p)).lstrip(".")
    what = str(first.get("msg", "it cannot be read")).removeprefix("Value error, ")
    if first.get("type") == "json_invalid" or not where:
        return BadInput(
            f"the body is no JSON object of this route ({printable(what)})", "a JSON object in UTF-8, sent as application/json"
        )
    if first.get("type") == "missing":
        return BadInput(f"{printable(field)} is missing", "", printable(field))
    return BadInput(f"{printable(field)}: {_given(first)}{_lower(what)}", "", printable(field))


def _branch(part: Any) -> bool:
    """Pydantic names the alternative of a union it tried (`list[str]`); a caller wrote no such thing."""
    return isinstance(part, str) and re.fullmatch(r"[a-z_]\w*", part) is None


def _given(found: Mapping[str, Any]) -> str:
    value = found.get("input")
    return f"{printable(repr(value), 60)} given, " if isinstance(value, (str, int, float, bool)) else ""


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _code(problem: Problem) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(problem).__name__).lower()
