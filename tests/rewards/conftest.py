"""`import scoring` finds the helpers beside these tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
