"""One made world for the reading tests, and `import made_world` for those that move something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

sys.path.append(str(Path(__file__).parent))

World = tuple[Path, str, Path, str]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Runs, store, key file, key. Read only."""
    from made_world import make_world

    return make_world(tmp_path_factory.mktemp("console"))


@pytest.fixture
def client_of() -> Callable[..., TestClient]:
    """A client of a console, as a browser on this machine or, with `host`, from elsewhere."""

    def client(world: World, with_keys: bool = True, host: str = "127.0.0.1", **more: Any) -> TestClient:
        from policyloop.api.keys import KeyFile
        from policyloop.ui import Sources
        from policyloop.ui.app import make_console

        runs, store, keys, _ = world
        app = make_console(Sources(runs, store, **more), KeyFile(keys if with_keys else None))
        return TestClient(app, base_url=f"http://{host}", client=(host, 50000), raise_server_exceptions=False)

    return client


@pytest.fixture
def page(world: World, client_of: Callable[..., TestClient]) -> Callable[[str], Any]:
    """What the console answers to a path of its JSON."""
    client = client_of(world)

    def ask(path: str) -> Any:
        reply = client.get(f"/ui/api/{path}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    return ask
