"""`import made_run` finds the helper beside these tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from made_run import make_run

    return make_run(tmp_path_factory.mktemp("runs") / "gfpo")
