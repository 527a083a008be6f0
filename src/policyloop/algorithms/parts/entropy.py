"""The entropy bonus: -coef · token entropy (nats, of the untruncated policy at the sampling temperature)."""

from __future__ import annotations

from policyloop.algorithms.parts.schedule import Number
from policyloop.types import settings


@settings
class Entropy:
    """coef 0.01 is S3's, 0.001 GFPO's; 0 is off."""

    coef: Number = 0.0
