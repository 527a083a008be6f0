"""`import small_models` finds the helper beside these tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_models import make_model

    torch.set_num_threads(1)
    return make_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def adapter(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_models import make_adapter

    return make_adapter(tmp_path_factory.mktemp("adapters") / "mine", llama)
