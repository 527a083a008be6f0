"""Curation: what people said becomes prompts, pairs and demonstrations; late, repeated and hostile voices; nothing held out gets in."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from policyloop.collect import CollectSettings
from policyloop.collect.curate import Curated, curate, held_out_texts, new_evidence
from policyloop.errors import BadInput
from policyloop.store import open_store
from policyloop.tasks import DataSettings, load_task


def made(world: Any, **more: Any) -> Curated:
    world.ship()
    held_out = more.pop("held_out", ())
    return curate(CollectSettings(store=world.store, **more), held_out)


def test_an_answer_becomes_a_prompt_with_its_target_found_by_request_id(world: Any) -> None:
    wrong, right = world.ask("7+8=", "It is 14."), world.ask("2+2=", "It is 4.")
    world.say(wrong, "answer", "15")
    world.say(right, "answer", "4")
    rows = made(world).rows
    first, second = rows.prompts
    assert (first["prompt"], first["answer"], first["priority"], first["value"], first["requests"]) == (
        "7+8=",
        "15",
        "wrong",
        0.0,
        [wrong],
    )
    assert (second["answer"], second["priority"], second["value"], second["requests"]) == ("4", "other", 1.0, [right])


def test_the_files_are_what_the_tasks_read(world: Any, tmp_path: Any) -> None:
    a, b, c = world.ask("7+8=", "14"), world.ask("7+8=", "15", tokens=3), world.ask([{"role": "user", "content": "2+2="}], "5")
    for request in (a, b):
        world.say(request, "answer", "15")
    world.say(c, "edit", "2+2 is 4")
    curated = made(world)
    assert curated.version is not None
    folder = open_store(world.store).on("datasets").fetch(curated.version, tmp_path / "set")
    train = load_task(DataSettings(path=str(folder / "prompts.jsonl"), held_out_share=0.0), 0).train()
    assert [(p.target, p.meta["requests"]) for p in train] == [("15", [a, b])]
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    assert {(p["chosen"], p["rejected"], p["why"]) for p in pairs} == {("15", "14", "better"), ("2+2 is 4", "5", "edit")}
    sft = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
    assert {(row["demonstration"], *row["requests"]) for row in sft} == {("15", b), ("2+2 is 4", c)}
    assert json.loads((folder / "curation.json").read_text())["counts"]["pairs"] == 2


def test_off_policy_rows_keep_ids_and_behaviour_logprobs_and_never_a_redacted_one(world: Any) -> None:
    kept = world.ask("7+8=", "14", logprobs=[-0.25] * 4)
    hidden = world.ask("my mail is [email]", "ok", redacted=True, token_ids=[], logprobs=[], prompt_token_ids=[], tokens=4)
    for request in (kept, hidden):
        world.say(request, "thumb", -1.0)
    rows = made(world).rows
    (row,) = rows.offpolicy
    assert (row["request_id"], row["version"], row["token_ids"], row["logprobs"], row["value"]) == (
        kept,
        "m@1",
        [0, 1, 2, 3],
        [-0.25] * 4,
        0.0,
    )
    assert rows.counts["redacted"] == 1
    table = pq.read_table(pa.BufferReader(rows.files()["offpolicy.parquet"]))
    assert table["request_id"].to_pylist() == [kept] and table["prompt_token_ids"].to_pylist() == [[1, 2]]


def test_wrong_first_then_wasteful_and_the_limit_keeps_the_first(world: Any) -> None:
    asked = [world.ask("fine?", "1", tokens=10), world.ask("long?", "1", tokens=50), world.ask("wrong?", "2", tokens=10)]
    asked += [world.ask(f"usual {i}?", "1", tokens=10) for i in range(3)]
    for request in asked:
        world.say(request, "answer", "1")
    assert [row["priority"] for row in made(world).rows.prompts] == ["wrong", "wasteful", *["other"] * 4]
    assert [row["prompt"] for row in made(world, limit=2).rows.prompts] == ["wrong?", "long?"]


def test_of_two_right_answers_the_much_shorter_one_is_chosen(world: Any) -> None:
    for text, tokens in (("4", 5), ("2+2: count 2, count 2, so 4", 40)):
        world.say(world.ask("2+2=", text, tokens=tokens), "answer", "4")
    (pair,) = made(world).rows.pairs
    assert (pair["chosen"], pair["why"]) == ("4", "shorter")


def test_the_last_word_counts_and_a_late_one_is_seen(world: Any) -> None:
    request = world.ask("7+8=", "15")
    world.say(request, "thumb", -1.0)
    world.say(request, "thumb", 1.0)
    assert [row["demonstration"] for row in made(world).rows.sft] == ["15"]
    world.say(request, "thumb", -1.0, after=500)
    rows = made(world).rows
    assert rows.sft == [] and rows.offpolicy[0]["value"] == 0.0


def test_only_who_asked_or_a_label_speaks_of_a_request(world: Any) -> None:
    request = world.ask("7+8=", "14", key="a")
    world.say(request, "answer", "99", key="stranger")
    world.say("unknown", "answer", "99", key="a")
    assert made(world).rows.prompts == []
    world.say(request, "answer", "14", key="a")
    assert made(world).rows.prompts[0]["answer"] == "14"
    world.say(request, "answer", "15", key="reviewer", label=True)
    assert made(world).rows.prompts[0]["answer"] == "15"


def test_users_behind_a_shared_key_are_voices_of_their_own(world: Any) -> None:
    for user, answer in (("ann", "15"), ("bob", "15"), ("eve", "99")):
        world.say(world.ask("7+8=", "14", key="app", user=user), "answer", answer, key="app", user=user)
    request = world.ask("1+1=", "3", key="app", user="ann")
    world.say(request, "answer", "99", key="app", user="eve")  # not her request
    rows = made(world, shared_keys=("app",)).rows
    assert [(row["prompt"], row["answer"]) for row in rows.prompts] == [("7+8=", "15")]


def test_voices_that_disagree_give_no_target(world: Any) -> None:
    for key, answer in (("a", "15"), ("b", "16")):
        world.say(world.ask("7+8=", "14", key=key), "answer", answer, key=key)
    assert made(world).rows.prompts == []


def test_a_brigading_key_moves_nothing(world: Any) -> None:
    """40 honest keys; one key asks and votes a thousand times, on their questions and its own. The set is the same with and without it."""
    for k in range(40):
        for q in range(5):
            world.say(world.ask(f"{k}+{q}=", str(k + q), key=f"k{k}"), "answer", str(k + q), key=f"k{k}")
    before = made(world)
    for i in range(1000):
        a, b = i % 50, i % 7
        request = world.ask(f"{a}+{b}=", str(a + b), key="eve", target="666" if i % 2 else None)
        world.say(request, "answer", "666", key="eve")
        world.say(f"r{1 + i % 200}", "thumb", -1.0, key="eve")
    after = made(world)
    told = [[(row["prompt"], row["answer"]) for row in c.rows.prompts] for c in (before, after)]
    assert sorted(told[0]) == sorted(told[1]) and len(told[0]) == 200
    assert [p for p in after.rows.prompts if p["answer"] == "666"] == [] and after.rows.pairs == [] == before.rows.pairs
    assert after.rows.set_aside == {"eve": 1000}


def test_a_voice_counts_only_so_often(world: Any) -> None:
    for i in range(8):
        world.say(world.ask(f"{i}+1=", "0"), "answer", str(i + 1))
    assert len(made(world, per_voice=3).rows.prompts) == 3


def test_copies_of_held_out_questions_stay_out(world: Any, tmp_path: Any) -> None:
    held = tmp_path / "held.jsonl"
    text = "A farmer has 12 hens and buys 30 more hens on the market. How many hens does he have now?"
    held.write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in ("What is 7+8?", text)))
    suite = DataSettings(path=str(held), eval=str(held), overlap="warn")
    for prompt in ("what is  7+8?", text.replace("farmer", "farmer, Al,"), "What is 9+9?"):
        world.say(world.ask([{"role": "system", "content": "s"}, {"role": "user", "content": prompt}], "1"), "answer", "1")
    rows = made(world, held_out=[suite]).rows
    assert [row["prompt"][-1]["content"] for row in rows.prompts] == ["What is 9+9?"]
    assert rows.counts["held_out_copies"] == 2 and "What is 7+8?" in held_out_texts([suite])


def test_a_copy_by_a_gateway_counts_once_and_shadows_not_at_all(world: Any) -> None:
    request = world.ask("7+8=", "14", token_ids=[], logprobs=[], prompt_token_ids=[], source="canary")
    world.rows.append(("records", {**world.rows[-1][1], "token_ids": [5], "logprobs": [-1.0], "source": "serve"}))
    world.ask("7+8=", "13", source="shadow")
    world.say(request, "answer", "15")
    rows = made(world).rows
    assert rows.prompts[0]["requests"] == [request] and rows.offpolicy[0]["token_ids"] == [5]


def test_the_same_journal_gives_no_second_set_and_evidence_is_counted_from_the_last(world: Any) -> None:
    chosen = CollectSettings(store=world.store)
    request = world.ask("7+8=", "14")
    assert made(world).version is None  # nothing was said yet
    world.say(request, "answer", "15")
    world.ship()
    assert new_evidence(chosen) == 1
    first, second = curate(chosen), curate(chosen)
    assert str(first.version) == str(second.version) == "feedback@1" and new_evidence(chosen) == 0
    world.say(world.ask("1+1=", "3"), "answer", "2")
    world.ship()
    assert new_evidence(chosen) == 1
    third = curate(chosen)
    assert third.version is not None and third.version.lineage["parent"] == "feedback@1"


@pytest.mark.parametrize("change", [{"days": 0.0}, {"per_voice": 0}, {"good": 0.2}, {"near": 0.0}, {"limit": 0}, {"loud": 1.0}])
def test_settings_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        CollectSettings(**change)
