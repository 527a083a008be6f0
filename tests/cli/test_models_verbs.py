from pathlib import Path

import pytest

from policyloop.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out + out.err


def test_pull_and_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path))
    code, text = run(capsys, "models", "list")
    assert code == 0 and "smollm2-135m-instruct" in text and "not here yet; download: none" in text
    assert run(capsys, "models", "pull", "tiny") == (0, f"{tmp_path}/models/tiny\n")
    assert f"here: {tmp_path}/models/tiny" in run(capsys, "models", "list")[1]
    code, text = run(capsys, "models", "pull", "nope")
    assert code == 2 and "allowed is smollm2-135m-instruct, tiny" in text
