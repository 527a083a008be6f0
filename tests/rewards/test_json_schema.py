"""Answers that must be JSON of a given shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scoring import group, scorer, values

from policyloop.errors import BadInput
from policyloop.rewards import JsonSchema, RewardsSettings
from policyloop.rewards.json_schema import FitsSchema

SCHEMA = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}, "additionalProperties": False}


def test_fits_or_does_not(tmp_path: Path) -> None:
    texts = ['{"city": "Oslo"}', ' {"city": "Oslo"}\n', '```json\n{"city": "Oslo"}\n```', '{"city": 3}', '{"town": "Oslo"}']
    texts += ['{"city": "Oslo"', '{"city": "Oslo"} and more', "[" * 100_000, '{"city": NaN}']
    groups = [group(texts)]
    expected = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    settings = RewardsSettings(terms=(JsonSchema(schema=SCHEMA),))
    assert values(scorer(settings, groups).score(groups)[0]) == expected
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    assert FitsSchema(str(tmp_path / "s.json"), fenced=False)(texts[0]) == 1.0
    assert FitsSchema(SCHEMA, fenced=False)(texts[2]) == 0.0


def test_a_schema_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no schema"):
        FitsSchema({"type": "objekt"}, True)
    with pytest.raises(BadInput, match="cannot be read"):
        FitsSchema(str(tmp_path / "absent.json"), True)
