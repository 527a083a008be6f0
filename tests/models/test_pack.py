import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyloop.models.pack import Row, pack, split
from policyloop.types import Segment


def test_the_example_of_the_module() -> None:
    packed = pack([("g", [1, 2, 3], [7, 8]), ("g", [1, 2, 3], [9])], torch.ones(2, 2, dtype=torch.bool))
    assert packed.token_ids_L.tolist() == [1, 2, 3, 7, 8, 9]
    assert packed.position_ids_L.tolist() == [0, 1, 2, 3, 4, 3]
    assert packed.layout == (Segment(0, 3, (2, 1)),)
    assert packed.row_NT.tolist() == [[2, 3], [2, -1]]
    assert packed.target_NT.tolist() == [[7, 8], [9, 0]]
    assert packed.needed_NT.tolist() == [[True, True], [True, False]]


def test_a_prompt_is_shared_by_neighbours_of_one_group_only() -> None:
    rows: list[Row] = [("a", [1], [5]), ("b", [1], [6]), ("b", [1], []), ("a", [1], [7, 8])]
    packed = pack(rows, torch.ones(4, 3, dtype=torch.bool))
    assert packed.token_ids_L.tolist() == [1, 5, 1, 6, 1, 7, 8]
    assert packed.layout == (Segment(0, 1, (1,)), Segment(2, 1, (1, 0)), Segment(4, 1, (2,)))
    assert packed.row_NT.tolist() == [[0, -1, -1], [2, -1, -1], [-1, -1, -1], [4, 5, -1]]


def test_c01_padding_is_found_by_length_never_by_token() -> None:
    packed = pack([("g", [1], [33, 2]), ("g", [1], [2, 2, 2, 2])], torch.ones(2, 4, dtype=torch.bool))
    assert packed.needed_NT.tolist() == [[True, True, False, False], [True] * 4]


batches = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 40), st.booleans())
def test_a_split_keeps_every_row_once_in_order_within_the_budget(
    lengths: list[tuple[int, int, int]], budget: int, whole: bool
) -> None:
    prompts = {g: [1] * p for g, p, _ in lengths}
    rows: list[Row] = [(g, prompts[g], [5] * n) for g, _, n in sorted(lengths)]
    parts = split(rows, budget, whole)
    assert [n for part in parts for n in part] == list(range(len(rows)))
    assert parts == split(rows, budget, whole)
    for part in parts:
        cut = [rows[n] for n in part]
        size = len(pack(cut, torch.ones(len(cut), 9, dtype=torch.bool)).token_ids_L)
        groups = {g for g, _, _ in cut}
        assert size <= budget or len(part) == 1 or (whole and len(groups) == 1)
        if whole:
            assert all((rows[n][0] in groups) == (n in part) for n in range(len(rows)))


def test_parts_are_as_full_as_the_budget_lets_them() -> None:
    rows: list[Row] = [("a", [1] * 4, [5] * 3)] * 3 + [("b", [1] * 4, [5] * 3)]
    assert split(rows, 10) == [[0, 1], [2], [3]]
    assert split(rows, 13) == [[0, 1, 2], [3]]
    assert split(rows, 20) == [[0, 1, 2, 3]]
    assert split(rows, 10, whole_groups=True) == [[0, 1, 2], [3]]
