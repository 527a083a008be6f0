"""The value service on real sockets: the same numbers as a critic in the process, replicas that die and come back, wrong calls refused."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from policyloop.errors import BadInput, Unavailable
from policyloop.models import CriticSettings, ModelSettings
from policyloop.models.critic import CriticModel, load_critic
from policyloop.models.pack import pack
from policyloop.models.proto import value_pb2, value_pb2_grpc
from policyloop.serve.value import make_server
from policyloop.training.remote_critic import RemoteCritic
from policyloop.types import Packed

SETTINGS = CriticSettings(lr=1e-2)


def critic() -> CriticModel:
    torch.set_num_threads(1)
    return load_critic(ModelSettings(base_model_path="tiny", lora=None), SETTINGS, "fp32", "cpu", 0)


def packed(shift: int = 0) -> Packed:
    rows = [("g", [1, 2, 3], [4 + shift, 5]), ("g", [1, 2, 3], [6]), ("h", [2, 1], [3, 4, 5 + shift])]
    needed = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    return pack(rows, needed)


class Replicas:
    """Value services on free ports of this machine."""

    def __init__(self, count: int) -> None:
        self.servers: dict[str, grpc.Server] = {}
        self.critics: dict[str, CriticModel] = {}
        for _ in range(count):
            self.start()

    def start(self, port: int = 0) -> str:
        made = critic()
        server, bound = make_server(made, "127.0.0.1", port, 2)
        address = f"127.0.0.1:{bound}"
        self.servers[address], self.critics[address] = server, made
        return address

    def stop(self, address: str) -> None:
        self.servers.pop(address).stop(0).wait()


@pytest.fixture
def two() -> Iterator[Replicas]:
    made = Replicas(2)
    yield made
    for address in list(made.servers):
        made.stop(address)


def loss(values_NT: torch.Tensor, i: int) -> torch.Tensor:
    return ((values_NT - (i + 1.0)) ** 2).sum() / 7


def test_values_and_steps_are_those_of_a_critic_in_the_process(two: Replicas) -> None:
    here, there = critic(), RemoteCritic(list(two.servers), timeout_s=30)
    for step in range(3):
        assert torch.equal(there.values(packed()), here.values(packed()))
        parts = [packed(), packed(1)]
        mine, theirs = here.learn(parts, loss), there.learn(parts, loss)
        assert theirs[0] and mine[0] and theirs[1] == pytest.approx(mine[1], rel=1e-6)
        assert there.version == step + 1
    assert here.values(packed()).abs().sum() > 0
    for replica in two.critics.values():
        for (name, p), (_, q) in zip(here.named, replica.named, strict=True):
            assert torch.equal(p, q), name


def test_a_replica_that_dies_loses_nothing_and_one_that_comes_back_is_brought_up_to_date(
    two: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policyloop.training.remote_critic.AGAIN_S", 0.0)
    here, there = critic(), RemoteCritic(list(two.servers), timeout_s=30)
    first, second = two.servers
    for one in (here, there):
        one.learn([packed()], loss)
    two.stop(first)
    for one in (here, there):
        assert one.learn([packed()], loss)[0]
    assert torch.equal(there.values(packed()), here.values(packed()))
    back = two.start(int(first.rpartition(":")[2]))
    for _ in range(200):
        there.values(packed())
        if not any(r.stale for r in there.replicas):
            break
    assert not any(r.stale for r in there.replicas)
    two.stop(second)
    assert torch.equal(there.values(packed()), here.values(packed()))
    assert torch.equal(two.critics[back].values(packed()), here.values(packed()))


def test_state_goes_in_and_out(two: Replicas) -> None:
    there = RemoteCritic(list(two.servers), timeout_s=30)
    before = there.files()
    there.learn([packed()], loss)
    moved = there.values(packed())
    there.load(before)
    assert not torch.equal(there.values(packed()), moved)
    assert set(before) == set(critic().files())


def test_a_loss_that_is_not_finite_moves_nothing(two: Replicas) -> None:
    there = RemoteCritic(list(two.servers), timeout_s=30)
    taken, norm = there.learn([packed()], lambda values_NT, i: values_NT.sum() * float("nan"))
    assert (taken, norm != norm, there.version) == (False, True, 0)


def test_nobody_there_is_one_sentence() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        RemoteCritic(["127.0.0.1:9"], timeout_s=1)
    with pytest.raises(BadInput, match=r"model\.critic\.service"):
        RemoteCritic([])


def test_wrong_calls_are_refused_in_a_sentence(two: Replicas) -> None:
    stub = value_pb2_grpc.ValueStub(grpc.insecure_channel(next(iter(two.servers))))
    for request in (
        value_pb2.ValuesRequest(packed=value_pb2.Packed(tensors=b"no tensors")),
        value_pb2.ValuesRequest(),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            stub.Values(request, timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as stale:
        stub.Learn(value_pb2.LearnRequest(version=7), timeout=10)
    assert stale.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert next(iter(two.critics.values())).values(packed()).abs().sum() == 0  # still there, nothing moved


def test_health_and_reflection_speak_the_standard_protocols(two: Replicas) -> None:
    channel = grpc.insecure_channel(next(iter(two.servers)))
    said = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service="policyloop.value.v1.Value"), timeout=10
    )
    assert said.status == health_pb2.HealthCheckResponse.SERVING
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    (listed,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]), timeout=10)
    assert "policyloop.value.v1.Value" in {s.name for s in listed.list_services_response.service}


def run_of_ppo(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The run of tests/training/test_trainer_critic.py, one recipe for both places of the critic."""
    path = Path(__file__).parents[1] / "training" / "test_trainer_critic.py"
    spec = importlib.util.spec_from_file_location("ppo_run", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["ppo_run"] = module
    spec.loader.exec_module(module)
    return module.ppo(folder, 2, **changes)


def test_ppo_trains_against_the_service_to_the_same_numbers_as_in_process(two: Replicas, tmp_path: Path) -> None:
    for replica in two.critics.values():
        replica.optimizer.param_groups[0]["lr"] = 1e-3  # the service's own learning rate is the run's here
    alone = run_of_ppo(tmp_path / "alone")
    served = run_of_ppo(tmp_path / "served", **{"model.critic.service": str(list(two.servers))})
    assert len(alone) == len(served) == 2
    for mine, theirs in zip(alone, served, strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert theirs[key] == pytest.approx(mine[key], rel=1e-5, abs=1e-7), key


def test_the_wire_is_checked_where_it_arrives() -> None:
    from policyloop.models.wire import packed_bytes, unpacked

    tensors, layout = packed_bytes(packed())
    again = unpacked(tensors, layout)
    assert torch.equal(again.token_ids_L, packed().token_ids_L) and again.layout == packed().layout
    with pytest.raises(ValueError, match="beyond"):
        unpacked(tensors, [(0, 10_000, (1,))])
