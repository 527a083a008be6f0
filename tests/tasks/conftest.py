"""Where the real data lies: POLICYLOOP_SHARED, else `shared` beside the repository. Absent = the test is skipped and says so."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def gsm8k_folder() -> str:
    root = Path(os.environ.get("POLICYLOOP_SHARED") or Path(__file__).parents[3] / "shared")
    folder = root / "data" / "gsm8k"
    if not folder.is_dir():
        pytest.skip(f"the real GSM8K is not there ({folder}; POLICYLOOP_SHARED names another place)")
    return str(folder)
