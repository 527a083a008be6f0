"""Test questions inside the training data (case G10)."""

import random
import time

from policyloop.tasks.overlap import exact_overlap, find_overlap, normalise


def test_spacing_case_and_width_do_not_hide_a_copy():
    train = ["What is 3 + 4?", "How many eggs are left?", "Ｈow  many EGGS\nare left ?"]
    assert exact_overlap(train, ["how many eggs are left?", "what is 3-4?"]) == ((1, 0),)
    assert normalise("3 + 4") != normalise("3 - 4")


def sentence(rng: random.Random, words: int = 40) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(words))


def test_near_copies_are_found_and_strangers_are_not():
    rng = random.Random(1)
    train = [sentence(rng) for _ in range(300)]
    changed = train[7].split()
    changed[20] = "something"
    found = find_overlap(train, [sentence(rng), " ".join(changed), train[9].upper(), "", "ab"])
    assert found.exact == ((9, 2),)
    assert [(i, j) for i, j, _ in found.near] == [(7, 1)]
    # One of 40 words differs: at most 14 of about 200 5-grams on either side.
    assert 0.8 < found.near[0][2] < 1


def test_similarity_is_jaccard_of_five_character_grams():
    # abcdefgh has 4 grams, abcdefgx shares 3 of them: 3 / 5.
    assert find_overlap(["abcdefgh"], ["abcdefgx"], threshold=0.5).near == ((0, 0, 0.6),)
    assert find_overlap(["abcdefgh"], ["abcdefgx"], threshold=0.61).near == ()


def test_nothing_against_nothing():
    assert find_overlap([], ["a"]).exact == find_overlap(["a"], []).near == ()


def test_many_copies_of_one_template_take_no_square_of_time():
    text = (
        "Tom went to the market on a sunny day, bought {} apples and gave {} of them to Anna. How many apples are left for Tom?"
    )
    train = [text.format(i, i // 2) for i in range(1000)]
    test = [text.format(i, i // 3) for i in range(1000, 2000)]
    start = time.process_time()
    assert len(find_overlap(train, test).near) == len(test)
    assert time.process_time() - start < 5
