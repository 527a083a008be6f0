"""The value service: a critic behind gRPC, with the standard health and reflection services beside it.

In: packed rows. Out: the values of the state before each completion token; with gradients of a loss in those values, one optimizer step.
The loss itself stays with the trainer: nothing of an algorithm is known here.

Example: `policyloop value-service --model_path checkpoints/value_net --port 50051 --max_workers 8`
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from policyloop.errors import BadInput, Problem
from policyloop.models import CriticSettings, ModelSettings
from policyloop.models.critic import CriticModel, load_critic
from policyloop.models.proto import value_pb2, value_pb2_grpc
from policyloop.models.wire import tensor_bytes, tensors_of, unpacked
from policyloop.types import Packed

NAME = "policyloop.value.v1.Value"
wire: Any = value_pb2  # its classes are made at import
MOST_BYTES = 1 << 30  # a whole critic travels in Save and Load


class ValueService(value_pb2_grpc.ValueServicer):
    """One model, one lock: calls take turns, since they share its weights. `version` = optimizer steps taken."""

    def __init__(self, critic: CriticModel) -> None:
        self.critic, self.version, self.turn = critic, 0, threading.Lock()

    def Values(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._answering(context):
            values_NT = self.critic.values(_packed(request.packed))
            return wire.ValuesReply(values=tensor_bytes({"values_NT": values_NT}), version=self.version)

    def Learn(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._answering(context):
            if request.version != self.version:
                said = f"the gradients belong to version {request.version} of the critic, this is {self.version}"
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, said)
            parts = [_packed(part) for part in request.parts]
            gradients = tensors_of(request.gradients)
            for i, part in enumerate(parts):
                if f"{i}" not in gradients or gradients[f"{i}"].shape != part.needed_NT.shape:
                    raise ValueError(f"part {i} has no gradient of its shape")
            taken, norm = self.critic.learn(parts, lambda values_NT, i: (values_NT * gradients[f"{i}"]).sum())
            self.version += taken
            return wire.LearnReply(taken=taken, norm=norm, version=self.version)

    def Save(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._answering(context):
            return wire.Files(files=self.critic.files(), version=self.version)

    def Load(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._answering(context):
            self.critic.load(dict(request.files))
            self.version = request.version
            return wire.LoadReply(version=self.version)

    @contextmanager
    def _answering(self, context: grpc.ServicerContext) -> Iterator[None]:
        """One call at a time; what the caller did wrong is INVALID_ARGUMENT, in one sentence."""
        with self.turn:
            try:
                yield
            except (Problem, ValueError, KeyError, IndexError) as problem:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))


def _packed(message: Any) -> Packed:
    return unpacked(message.tensors, [(s.start, s.prompt_tokens, tuple(s.completion_tokens)) for s in message.layout])


def make_server(critic: CriticModel, host: str, port: int, max_workers: int) -> tuple[grpc.Server, int]:
    """A started server and its port. Errors: BadInput for an address that cannot be had."""
    options = [
        ("grpc.max_receive_message_length", MOST_BYTES),
        ("grpc.max_send_message_length", MOST_BYTES),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers), options=options, maximum_concurrent_rpcs=max_workers * 64)
    value_pb2_grpc.add_ValueServicer_to_server(ValueService(critic), server)
    status = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    for name in ("", NAME):
        status.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as problem:
        raise BadInput(f"{host}:{port} cannot be listened on", "a free port", "--port") from problem
    server.start()
    return server, bound


def serve(
    model_path: str, host: str, port: int, max_workers: int, precision: str, device: str, lr: float, say: Callable[[str], None]
) -> None:
    """Until SIGTERM or SIGINT: running calls get ten seconds. Errors: BadInput for a folder that holds no critic."""
    lora = (Path(model_path) / "adapter_config.json").exists()
    model = ModelSettings(base_model_path=model_path) if lora else ModelSettings(base_model_path=model_path, lora=None)
    critic = load_critic(model, CriticSettings(lr=lr), precision, device, 0)
    server, bound = make_server(critic, host, port, max_workers)
    left = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: left.set())
    say(f"policyloop value-service listens on {host}:{bound} ({torch.get_num_threads()} threads)")
    left.wait()
    server.stop(10).wait()
