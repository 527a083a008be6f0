"""Answers that must be JSON of a given shape.

Example: schema {"type": "object", "required": ["city"]}, answer '{"city": "Oslo"}' -> 1.0; '{"town": "Oslo"}' -> 0.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import exceptions, validators

from policyloop.errors import BadInput

FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
WHERE = "rewards.json_schema.schema"


class FitsSchema:
    """Called once per answer: 1 where it parses and fits, else 0. `fenced`: a Markdown fence around the whole answer is allowed."""

    def __init__(self, schema: Mapping[str, Any] | str, fenced: bool) -> None:
        tree = load_schema(schema)
        kind = validators.validator_for(tree)
        try:
            kind.check_schema(dict(tree))
        except exceptions.SchemaError as problem:
            raise BadInput(f"the JSON schema is no schema ({problem.message})", "a JSON Schema", WHERE) from problem
        self.validator, self.fenced = kind(tree), fenced

    def __call__(self, completion: str) -> float:
        text = completion.strip()
        if self.fenced and (found := FENCE.fullmatch(text)):
            text = found[1]
        try:
            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return 0.0
        return float(self.validator.is_valid(value))


def load_schema(schema: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """The schema itself, or the file that holds it."""
    if not isinstance(schema, str):
        return schema
    try:
        tree = json.loads(Path(schema).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise BadInput(f"the JSON schema {schema} cannot be read ({problem})", "a file with a JSON Schema", WHERE) from problem
    if not isinstance(tree, Mapping):
        raise BadInput(f"{schema} holds no JSON object", "a JSON Schema", WHERE)
    return tree


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
