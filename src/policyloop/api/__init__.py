"""What every HTTP service of policyloop shares: the OpenAI schema, the error shape, streams, keys, limits, health, drain. No torch.

`schema` and `replies` are the OpenAI API, request and answer; `faults` turns a Problem into JSON with a status; `sse` writes and reads
streams; `keys` and `quotas` say who may do what and how much of it; `lifecycle` is starting, ready, draining; `meters` is /metrics;
`app` puts them around an application and `running` runs it on its ports until SIGTERM has drained it.

Example:
    >>> app = make_app("policyloop serve", Edge(Lifecycle(), Guard(KeyFile(None)), Meters(SERVING)))
    >>> @app.post("/v1/completions")
    ... async def completions(body: CompletionBody, key: Annotated[Key, Depends(needs("infer"))]) -> dict: ...
"""

from __future__ import annotations

import re
import secrets
import unicodedata

REQUEST_ID = "x-request-id"
VERSION = "x-policyloop-version"
SESSION = "x-policyloop-session"
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def new_request_id(given: str | None = None) -> str:
    """The caller's own id where it is harmless in logs and file names, else a fresh one."""
    return given if given and _SAFE.fullmatch(given) else f"req-{secrets.token_hex(12)}"


def printable(text: str, most: int = 200) -> str:
    """What a caller wrote, fit for one line of a header, a log or a sentence."""
    shown = "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
    return shown + ("…" if len(text) > most else "")


def header(text: str) -> str:
    """A value that may stand in an HTTP header."""
    return printable(text).encode("ascii", "replace").decode()
