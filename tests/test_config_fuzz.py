"""Whatever a file or a flag holds, a mistake is a Problem with one sentence, never another exception."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policyloop.config import assigned, load_yaml
from policyloop.errors import Problem
from policyloop.recipe import from_tree, load, plan, tree_of

FULL = tree_of(from_tree({"model": {"base_model_path": "tiny"}, "rl_strategy": {"type": "gfpo"}}))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "clip", "gfpo", ":", "a:b"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6
)


def paths(tree: Any, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [way, *(p for k, v in tree.items() for p in paths(v, (*way, k)))] if isinstance(tree, dict) else [way]


WAYS = [way for way in paths(FULL) if way]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(way=st.sampled_from(WAYS), extra=st.none() | st.text(max_size=6), value=values)
def test_one_changed_place_loads_or_is_a_problem(way: tuple[str, ...], extra: str | None, value: Any) -> None:
    tree = copy.deepcopy(FULL)
    table = tree
    for key in way[:-1]:
        table = table[key]
    table[way[-1] if extra is None else extra] = value
    with contextlib.suppress(Problem):
        plan(from_tree(tree), prompts=100)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from(" \n\t:-[]{}&*!|>'\"#%@`,?"), max_size=60))
def test_any_text_is_yaml_or_a_problem(text: str) -> None:
    with contextlib.suppress(Problem):
        load_yaml(text)
    with contextlib.suppress(Problem):
        assigned(text)
    with contextlib.suppress(Problem):
        load(FULL, ["training." + text])
