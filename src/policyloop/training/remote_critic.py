"""A critic in other processes: round robin over replicas of the value service, deadlines, retries; no replica's death loses anything.

Values may come from any replica that has taken as many optimizer steps as the others; a step is taken by all of them, so that they stay
equal. A replica that missed one is out until it has been given the state of another. The loss is evaluated here: what travels is its
gradient in the values, and the numbers are those of a critic in the same process (float32).

Example:
    >>> critic = RemoteCritic(["127.0.0.1:50051", "127.0.0.1:50052"], timeout_s=60)
    >>> trainer = Trainer(policy, PPO, settings, critic=critic)
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policyloop.errors import BadInput, Unavailable
from policyloop.models.critic import Loss
from policyloop.models.wire import packed_bytes, tensor_bytes, tensors_of
from policyloop.types import Packed

log = logging.getLogger(__name__)
MOST_BYTES = 1 << 30
AGAIN_S = 5.0  # between looks at a replica that is not there


@dataclass(slots=True)
class Replica:
    """`stale`: it missed a step, or its state is not known to be that of the others; it is looked at again at `again_at`."""

    address: str
    stub: Any
    health: Any
    stale: bool = True
    again_at: float = 0.0


class RemoteCritic:
    """`models.critic.Critic` over gRPC. Errors: Unavailable when no replica is left; BadInput without addresses."""

    def __init__(self, addresses: Sequence[str], timeout_s: float = 60.0) -> None:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        from policyloop.models.proto import value_pb2, value_pb2_grpc

        if not addresses:
            raise BadInput("model.critic.service is empty", "host:port of a value service", "model.critic.service")
        self.grpc, self.wire, self.timeout_s = grpc, value_pb2, timeout_s
        options = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.max_send_message_length", MOST_BYTES)]
        channels = {a: grpc.insecure_channel(a, options) for a in addresses}
        self.replicas = [Replica(a, value_pb2_grpc.ValueStub(c), health_pb2_grpc.HealthStub(c)) for a, c in channels.items()]
        self.check = health_pb2.HealthCheckRequest()
        self.turn = itertools.count()
        self.version = self._agree()

    def values(self, packed: Packed) -> Tensor:
        request = self.wire.ValuesRequest(packed=self._message(packed))
        return tensors_of(self._any("Values", request).values)["values_NT"]

    def learn(self, parts: Sequence[Packed], loss: Loss) -> tuple[bool, float]:
        """One optimizer step on every replica. Not taken (False) where loss or gradients are not finite."""
        gradients, total = {}, 0.0
        for i, packed in enumerate(parts):
            values_NT = self.values(packed).requires_grad_()
            found = loss(values_NT, i)
            (gradient,) = torch.autograd.grad(found, values_NT)
            gradients[f"{i}"] = gradient
            total += float(found.detach())
        if not math.isfinite(total) or not all(torch.isfinite(g).all() for g in gradients.values()):
            return False, math.nan
        request = self.wire.LearnRequest(
            parts=[self._message(p) for p in parts], gradients=tensor_bytes(gradients), version=self.version
        )
        replies = [reply for r in self._fresh() if (reply := self._ask(r, "Learn", request)) is not None]
        if not replies:
            raise Unavailable("no value service is left that holds the critic", retry_after_s=5)
        self.version = replies[0].version
        return replies[0].taken, replies[0].norm

    def files(self) -> dict[str, bytes]:
        return dict(self._any("Save", self.wire.SaveRequest()).files)

    def load(self, files: Mapping[str, bytes]) -> None:
        """The same state for every replica that answers; from here on they are equal."""
        self._give(self.wire.Files(files=dict(files), version=self.version), self.replicas)
        if not self._fresh():
            raise Unavailable("no value service answers", retry_after_s=5)

    # --- replicas -----------------------------------------------------------------------------------------------------------

    def _any(self, method: str, request: Any) -> Any:
        """The answer of the next replica that is there; each is tried once."""
        self._heal()
        fresh = self._fresh()
        start = next(self.turn)
        for k in range(len(fresh)):
            reply = self._ask(fresh[(start + k) % len(fresh)], method, request)
            if reply is not None:
                return reply
        raise Unavailable("no value service is left that holds the critic", retry_after_s=5)

    def _ask(self, replica: Replica, method: str, request: Any) -> Any | None:
        """The reply, or None: the replica is not there, and out until it is given the state of another."""
        try:
            return getattr(replica.stub, method)(request, timeout=self.timeout_s)
        except self.grpc.RpcError as problem:
            if problem.code() == self.grpc.StatusCode.INVALID_ARGUMENT:
                raise BadInput(problem.details(), "a critic of the policy's model", "model.critic.service") from problem
            replica.stale, replica.again_at = True, time.monotonic() + AGAIN_S
            log.warning("value service %s: %s (%s)", replica.address, problem.code().name, str(problem.details())[:200])
            return None

    def _agree(self) -> int:
        """At the start the first replica that answers is right, and the others get its state. Returns its version."""
        for replica in self.replicas:
            state = self._ask(replica, "Save", self.wire.SaveRequest())
            if state is not None:
                replica.stale = False
                self._give(state, [r for r in self.replicas if r is not replica])
                return state.version
        raise Unavailable(f"no value service answers at {', '.join(r.address for r in self.replicas)}", retry_after_s=5)

    def _heal(self) -> None:
        """Replicas that came back get the state of one that never left; who is gone is asked again only now and then."""
        back = [r for r in self.replicas if r.stale and time.monotonic() >= r.again_at and self._there(r)]
        fresh = self._fresh()
        if back and fresh and (state := self._ask(fresh[0], "Save", self.wire.SaveRequest())) is not None:
            self._give(state, back)

    def _there(self, replica: Replica) -> bool:
        try:
            replica.health.Check(self.check, timeout=0.5)
            return True
        except self.grpc.RpcError:
            replica.again_at = time.monotonic() + AGAIN_S
            return False

    def _give(self, state: Any, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            replica.stale = self._ask(replica, "Load", state) is None

    def _fresh(self) -> list[Replica]:
        return [r for r in self.replicas if not r.stale]

    def _message(self, packed: Packed) -> Any:
        tensors, layout = packed_bytes(packed)
        segments = [self.wire.Segment(start=s, prompt_tokens=p, completion_tokens=list(c)) for s, p, c in layout]
        return self.wire.Packed(tensors=tensors, layout=segments)
