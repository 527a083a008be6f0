"""The real model: int8 and GGUF pass the parity check, int4 is refused. Needs the weights (`policyloop models pull smollm2-135m-instruct`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyloop.export import ExportSettings, ParitySettings
from policyloop.export.bundle import export

pytestmark = pytest.mark.slow
PARITY = ParitySettings(prompts=8, max_new_tokens=24)


@pytest.mark.parametrize(
    ("format", "gguf_type", "passes"),
    [
        ("merged", "as_is", True),
        ("int8", "as_is", True),
        ("gguf", "as_is", True),
        ("gguf", "q8_0", True),
        ("int4", "as_is", False),
    ],
)
def test_parity(format: str, gguf_type: str, passes: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ExportSettings(format=format, gguf_type=gguf_type, parity=PARITY)  # type: ignore[arg-type]
    made = export("smollm2-135m-instruct", tmp_path / "out", settings)
    with capsys.disabled():
        print(f"\n{format} {gguf_type}: {made.distance.sentence()}")
    assert made.promotable is passes
    if format == "merged" or (format, gguf_type) == ("gguf", "as_is"):
        assert made.distance.greedy_same == 1 and made.distance.kl < 1e-6
    if not passes:
        assert made.distance.kl > 0.1
