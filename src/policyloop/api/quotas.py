"""How much each key may ask for: requests and tokens per minute, counted by the `limits` library.

In: a Key. Out: nothing, or Overloaded with the seconds until there is room. A request is counted when it comes, its tokens when they are
known: the request that crosses the border is answered, the next one is not.

The counters live in this process unless a shared storage is named; replicas behind a gateway are counted at the gateway, which sees all of them.

Example:
    >>> quotas = Quotas(); quotas.request(key); ...; quotas.tokens(key, 812)
"""

from __future__ import annotations

import time
from typing import Any

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.errors import ConfigurationError
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

from policyloop.api.keys import Key
from policyloop.errors import BadInput, Overloaded


class Quotas:
    def __init__(self, uri: str = "memory://") -> None:
        """`uri` as `limits` reads it: memory:// counts in this process, redis://... for all that share it. Errors: BadInput."""
        try:
            storage: Any = storage_from_string(uri)
        except (ConfigurationError, ValueError) as problem:
            raise BadInput(f"limits in {uri} ({problem})", "memory://, redis://host:port, ...", "gateway.limits") from problem
        self._requests, self._tokens = MovingWindowRateLimiter(storage), FixedWindowRateLimiter(storage)

    def request(self, key: Key) -> None:
        """Count one request. Errors: Overloaded."""
        if key.tokens_per_minute is not None:
            item = RateLimitItemPerMinute(key.tokens_per_minute, namespace="tokens")
            if not self._tokens.test(item, key.name):
                raise self._full(self._tokens, item, key, f"{key.tokens_per_minute} tokens")
        if key.requests_per_minute is not None:
            item = RateLimitItemPerMinute(key.requests_per_minute, namespace="requests")
            if not self._requests.hit(item, key.name):
                raise self._full(self._requests, item, key, f"{key.requests_per_minute} requests")

    def tokens(self, key: Key, count: int) -> None:
        """Count the tokens of an answered request, prompt and answers."""
        if key.tokens_per_minute is not None and count > 0:
            self._tokens.hit(RateLimitItemPerMinute(key.tokens_per_minute, namespace="tokens"), key.name, cost=count)

    def _full(
        self, limiter: FixedWindowRateLimiter | MovingWindowRateLimiter, item: RateLimitItem, key: Key, what: str
    ) -> Overloaded:
        wait = max(0.0, limiter.get_window_stats(item, key.name).reset_time - time.time())
        return Overloaded(f"key {key.name} has used its {what} of this minute", "fewer", retry_after_s=wait)
