"""The admin port: keys decide, weights change under their names, adapters by name, drain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from peft import LoraConfig, get_peft_model
from served import Served
from transformers import AutoModelForCausalLM

from policyloop.api.keys import KeyFile


def lora(base: Path, out: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def admin(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, httpx.Client, Path]]:
    folder = tmp_path_factory.mktemp("admin")
    keys = KeyFile(folder / "keys.json")
    root, user = keys.add("root", ["admin", "infer"]), keys.add("user", ["infer"], ["tiny"])
    with Served(tiny, keys=folder / "keys.json") as server:
        server.http.headers["authorization"] = f"Bearer {user}"
        with httpx.Client(base_url=server.admin_url, headers={"authorization": f"Bearer {root}"}, timeout=60) as client:
            yield server, client, folder


def test_only_the_scope_admin_administers(admin: tuple[Served, httpx.Client, Path]) -> None:
    server, client, _ = admin
    token = server.http.headers["authorization"]
    assert client.get("/admin/status").json()["state"] == "ready"
    assert client.get("/admin/status", headers={"authorization": token}).status_code == 403
    assert client.post("/admin/swap", json={"model": "x", "modle": 1}).status_code == 400


def test_an_adapter_is_swapped_in_place_and_the_reply_says_who_spoke(
    tiny: Path, admin: tuple[Served, httpx.Client, Path]
) -> None:
    server, client, folder = admin
    asked = {"prompt": "9-3+2=", "seed": 1, "max_tokens": 20, "ignore_eos": True}
    before, engine = server.text(**asked), server.backend.now.engine  # type: ignore[attr-defined]
    path = str(lora(tiny, folder / "one", 1))
    assert client.post("/admin/swap", json={"model": path}).json()["version"] == path
    got = server.ask("/v1/completions", asked)
    assert got.json()["version"] == got.headers["x-policyloop-version"] == path and got.json()["choices"][0]["text"] != before
    assert server.backend.now.engine is engine  # type: ignore[attr-defined]
    assert client.post("/admin/swap", json={"model": "nowhere"}).status_code == 404
    assert client.post("/admin/swap", json={"model": str(tiny)}).status_code == 200
    assert server.text(**asked) == before


def test_adapters_by_name_answer_beside_the_base_and_keys_name_models(
    tiny: Path, admin: tuple[Served, httpx.Client, Path]
) -> None:
    server, client, folder = admin
    path = str(lora(tiny, folder / "two", 2))
    assert client.post("/admin/adapters", json={"name": "two", "model": path}).json() == {"name": "two", "version": path}
    assert client.post("/admin/adapters", json={"name": "two", "model": path}).status_code == 409
    assert client.post("/admin/adapters", json={"name": "three", "model": str(tiny)}).status_code == 400
    asked = {"prompt": "9-3+2=", "seed": 1, "max_tokens": 20, "ignore_eos": True, "model": "two"}
    assert server.ask("/v1/completions", asked).status_code == 403  # this key may ask `tiny` only
    got = httpx.post(
        server.url + "/v1/completions", json=asked, headers={"authorization": client.headers["authorization"]}, timeout=60
    ).json()
    assert (got["model"], got["version"]) == ("two", path) and got["choices"][0]["text"] != server.text(
        **{**asked, "model": "tiny"}
    )
    assert client.delete("/admin/adapters/two").status_code == 200
    assert client.delete("/admin/adapters/two").status_code == 404


def test_drain_is_a_hook_that_stops_new_requests(admin: tuple[Served, httpx.Client, Path]) -> None:
    server, client, _ = admin
    assert client.post("/admin/drain").json() == {"drained": True}
    assert server.ask("/v1/completions", {"prompt": "9"}).status_code == 503
    assert [server.ask(f"/health/{x}").status_code for x in ("live", "startup", "ready")] == [200, 200, 503]
