"""`import served` finds the helper beside these tests; one server on the tiny model for all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

if TYPE_CHECKING:
    from served import Served


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from served import chat_tiny

    return chat_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Served]:
    from served import Served

    with Served(tiny) as running:
        yield running
