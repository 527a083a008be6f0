"""Leases: who reads which version until when. Retention leaves a leased version alone; a lease that is not renewed ends by itself.

Example:
    >>> with holding(store, version, "gateway-1") as renew:
    ...     serve(store.fetch(version)); renew()
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from policyloop.errors import StoreError

if TYPE_CHECKING:
    from policyloop.store.manifest import Version
    from policyloop.store.registry import Store


@dataclass(frozen=True, slots=True)
class Lease:
    name: str
    number: int
    holder: str
    until: float  # seconds since 1970

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> Lease:
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as problem:
            raise StoreError("corrupt", f"a lease of {name} cannot be read ({problem})", "a lease as it was written") from problem


@contextmanager
def holding(store: Store, version: Version, holder: str, seconds: float = 600.0) -> Iterator[Callable[[], Lease]]:
    """A lease for as long as the `with` lasts; call what it gives more often than every `seconds` to renew it."""
    lease = store.lease(version, holder, seconds)
    try:
        yield lambda: store.lease(version, holder, seconds)
    finally:
        store.release(lease)
