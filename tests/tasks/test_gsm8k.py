"""GSM8K: the real files where they are, small ones elsewhere (case G10, requirement S0-24)."""

import json

import pytest

from policyloop.errors import BadInput, NotFound
from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.gsm8k import gold_and_solution, load
from policyloop.tasks.overlap import find_overlap
from policyloop.types import Completion


@pytest.fixture(scope="session")
def real(gsm8k_folder):
    return load_task(DataSettings(task="gsm8k", path=gsm8k_folder), 0)


def test_the_real_counts_golds_and_solutions(real):
    train, test = real.train(), real.held_out(0)
    assert (len(train), len(test)) == (7473, 1319)
    assert train[0].target == "72"
    assert train[0].meta["demonstration"].splitlines()[0] == "Natalia sold 48/2 = 24 clips in May."
    assert not any("<<" in p.meta["demonstration"] for p in train)
    assert all(p.target and p.target.replace(",", "").lstrip("-").replace(".", "").isdigit() for p in train + test)
    # 93 golds carry a comma and five are negative (counted in the files).
    assert sum("," in (p.target or "") for p in train + test) == 93
    assert sorted(p.target for p in train + test if p.target and p.target.startswith("-")) == ["-10", "-12", "-3", "-47", "-7"]


def test_the_real_splits_share_nothing(real):
    train = [i.spoken for i in real.train_items]
    test = [i.spoken for i in real.held_out_items]
    found = find_overlap(train, test)
    assert found.exact == ()
    assert found.near == ()
    leaky = [*train[:5], "  ".join(test[700].upper().split())]
    assert find_overlap(leaky, test[690:710]).exact == ((5, 10),)


def test_the_real_test_set_never_serves_as_training_set(gsm8k_folder):
    files = {name: f"{gsm8k_folder}/{name}.jsonl" for name in ("train", "test")}
    with pytest.raises(BadInput, match=r"test.jsonl has 1,319 train rows \(that is the number of test rows\): allowed is 7,473"):
        load(DataSettings(path=files["test"], eval=files["train"]), 0)
    with pytest.raises(BadInput, match="1319 of 1319 held-out questions are also in the training rows"):
        load(DataSettings(path=files["test"], eval=files["test"], options={"check_counts": False}), 0)
    with pytest.raises(BadInput, match=r"data.eval is missing"):
        load(DataSettings(path=files["train"]), 0)


@pytest.fixture
def small(tmp_path):
    for split, n in (("train", 3), ("test", 2)):
        rows = [{"question": f"{split} {i}?", "answer": f"1+{i}=<<1+{i}={1 + i}>>{1 + i}\n#### {1 + i}"} for i in range(n)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path)


def test_other_counts_are_refused_unless_asked_for(small):
    with pytest.raises(BadInput, match=r"has 3 train rows: allowed is 7,473, or data.options.check_counts: false"):
        load(DataSettings(path=small), 0)
    task = load(DataSettings(path=small, options={"check_counts": False}), 0)
    assert [p.target for p in task.train()] == ["1", "2", "3"]
    assert any("has 3 train rows, GSM8K has 7,473" in note for note in task.notes)
    assert task.train()[0].messages[-1].content.endswith("the final number.")
    done = Completion((1,), (2,), (-0.1,), "length", "run#0", "#### 2")
    assert [task.grade(p, done) for p in task.train()] == [False, True, False]


def test_a_hub_id_without_a_hub_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(NotFound, match=r"openai/gsm8k \(main, train\) is not in the cache.*data.path with a folder"):
        load(DataSettings(dataset_cache_dir=str(tmp_path)), 0)
    with pytest.raises(BadInput, match=r"data\.path no/such/folder does not exist"):
        load(DataSettings(path="no/such/folder"), 0)


def test_marks_and_golds():
    answer = "He pays 4*308.5=$<<4*308.5=1234>>1,234.\n#### 1,234"
    assert gold_and_solution(answer, "f line 1") == ("1,234", "He pays 4*308.5=$1,234.\n#### 1,234")
    for bad in ("no mark", "#### "):
        with pytest.raises(BadInput, match="f line 1: the answer has no '####'"):
            gold_and_solution(bad, "f line 1")
