"""The project's own files agree with each other: dependencies, lower bounds, lock."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
INSTALLED = ("serve", "curate", "quant", "dev")  # the extras that the tests run with
ASKED = [*PROJECT["dependencies"], *(r for extra in INSTALLED for r in EXTRAS[extra] if not r.startswith("policyloop["))]


def name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=]", requirement)[0]).lower()


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {name(package): version for package, version in pairs}


def test_every_dependency_has_a_lower_bound_and_the_second_lock_is_made_of_them() -> None:
    bounds = {name(r): re.search(r">=([\d.]+)", r) for r in ASKED}
    assert all(bounds.values())
    assert pinned("constraints-min.txt") == {n: m[1] for n, m in bounds.items() if m}


def test_the_development_install_brings_the_extras_that_the_tests_need() -> None:
    assert f"policyloop[{','.join(INSTALLED[:-1])}]" in EXTRAS["dev"]


def test_the_lock_holds_every_dependency_within_its_bounds() -> None:
    def parts(version: str) -> tuple[int, ...]:
        return tuple(int(x) for x in re.findall(r"\d+", version))

    lock, low = pinned("constraints.txt"), pinned("constraints-min.txt")
    assert set(low) <= set(lock)
    assert all(parts(lock[n]) >= parts(low[n]) for n in low)
    assert lock["torch"] == "2.13.0" and lock["transformers"] == "5.19.0"
