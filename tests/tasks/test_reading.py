"""Every fault of a data file survives or is named with file and line (cases G01, G03, G05, G07 and their kin)."""

import datetime
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyloop.errors import BadInput, NotFound
from policyloop.tasks import reading
from policyloop.tasks.reading import NumberText, literal, plain, read, read_split, split_files

ROW = '{"prompt": "a", "answer": "1"}'


@pytest.fixture
def rows(tmp_path):
    """Write bytes, read them back as (values, place without the folder)."""

    def of(content: bytes | str, name: str = "data.jsonl") -> list[tuple[dict, str]]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [(dict(r.values), r.place.removeprefix(str(path)).strip()) for r in read(str(path))]

    return of


def test_byte_order_mark(rows):
    assert rows(b"\xef\xbb\xbf" + ROW.encode()) == [({"prompt": "a", "answer": "1"}, "line 1")]
    assert rows(b"\xef\xbb\xbfprompt,answer\r\na,1\r\n", "data.csv") == [({"prompt": "a", "answer": "1"}, "line 2")]
    assert rows(b"\xef\xbb\xbf[" + ROW.encode() + b"]", "data.json") == [({"prompt": "a", "answer": "1"}, "line 1")]
    joined = (b"\xef\xbb\xbf" + ROW.encode() + b"\n") * 2
    assert [v for v, _ in rows(joined)] == [{"prompt": "a", "answer": "1"}] * 2


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x7f"])
def test_only_a_line_feed_ends_a_line(rows, separator):
    text = f"a{separator}b"
    assert rows(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" + ROW)[0] == ({"prompt": text}, "line 1")


def test_carriage_returns_and_blank_lines(rows):
    found = rows(f"{ROW}\r\n\r\n  \n{ROW}\r\n")
    assert [place for _, place in found] == ["line 1", "line 4"]
    assert found[0][0] == {"prompt": "a", "answer": "1"}


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        (f'{ROW}\n{{"prompt": "b", "ans\n{ROW}\n', 2, "is not JSON"),
        (f'{ROW}\n{ROW}\n{{"prompt": "b", "ans', 3, "the last line, is cut off"),
        (f'{ROW}\n{{"prompt": {{"a": 1}}', 2, "the last line, is cut off"),
        (f"{ROW}\n{{'prompt': 'b'}}", 2, "is not JSON (Expecting property name"),
        (f'{ROW}\n["a", "b"]\n', 2, "holds a list"),
        (f"{ROW}\n7\n", 2, "holds a number"),
        (f'{ROW}\n{{"prompt": "a", "prompt": "b"}}\n', 2, "'prompt' stands there twice"),
        (f'{ROW}\n{{"prompt": "a", "answer": NaN}}\n', 2, "NaN is not JSON"),
        (f'{ROW}\n{{"prompt": "\\ud800"}}\n', 2, "half of a character pair"),
        (f'{ROW}\n{{"prompt": {"[" * 100_000}\n', 2, "nested too deeply"),
        (f"{ROW}{ROW}\n", 1, "Extra data"),
    ],
)
def test_a_bad_line_is_named(rows, content, line, said):
    with pytest.raises(BadInput) as caught:
        rows(content)
    assert f"data.jsonl line {line}" in caught.value.given
    assert said in caught.value.given


def test_bytes_that_are_no_text(rows):
    with pytest.raises(BadInput, match=r"line 2: byte 0xe9 at column 16 is not UTF-8"):
        rows(ROW.encode() + b'\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(BadInput, match=r"line 2 holds NUL bytes"):
        rows(ROW.encode() + b"\n" + b"\0" * 100)
    with pytest.raises(BadInput, match=r"line 1 holds NUL bytes: the file is UTF-16"):
        rows(ROW.encode("utf-16"))
    with pytest.raises(BadInput, match=r"line 2, the last line, is cut off"):
        rows(ROW.encode() + b'\n{"prompt": "caf\xc3')
    assert rows('{"prompt": "a\\u0000b"}')[0][0] == {"prompt": "a\0b"}


def test_long_lines(rows, monkeypatch):
    assert len(rows(json.dumps({"prompt": "x" * 5_000_000}))[0][0]["prompt"]) == 5_000_000
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 1000)
    with pytest.raises(BadInput, match=r"line 2 is longer than 1,000 bytes"):
        rows(ROW + "\n" + json.dumps({"prompt": "x" * 1000}) + "\n")


def test_numbers_stay_as_they_are_written(rows):
    found = rows('{"a": 1, "b": "007", "c": 1e3, "d": 1.10, "e": -0, "f": 1' + "0" * 5000 + ', "g": true}\n')[0][0]
    assert {k: literal(v) for k, v in found.items() if k != "f"} == {
        "a": "1", "b": "007", "c": "1e3", "d": "1.10", "e": "-0", "g": "true"
    }  # fmt: skip
    assert literal(found["f"]) == "1" + "0" * 5000
    assert plain(found) | {"f": 0} == {"a": 1, "b": "007", "c": 1000.0, "d": 1.1, "e": 0, "f": 0, "g": True}
    assert plain(NumberText("1e999")) == "1e999"


def test_literal_of_python_values():
    assert [literal(v) for v in (None, float("nan"), 7, 1.5, False, "x")] == [None, None, "7", "1.5", "false", "x"]
    with pytest.raises(ValueError):
        literal(["a", "b"])
    assert plain({"when": datetime.date(2024, 1, 2), "n": float("nan"), "l": (NumberText("2"),)}) == {
        "when": "2024-01-02", "n": None, "l": [2]
    }  # fmt: skip


def test_json_files(rows):
    listed = rows('[\n  {"q": 1},\n\n  {"q": "2"}\n]\n', "data.json")
    assert listed == [({"q": "1"}, "line 2"), ({"q": "2"}, "line 4")]
    assert [v for v, _ in rows('{"version": 1, "data": [{"q": 1}, {"q": 2}]}', "data.json")] == [{"q": "1"}, {"q": "2"}]
    assert rows(f"{ROW}\n{ROW}\n", "data.json")[1] == ({"prompt": "a", "answer": "1"}, "line 2")
    chat = {"messages": [{"role": "user", "content": "a"}], "answer": "1"}
    assert rows(json.dumps(chat, indent=2), "data.json") == [(chat, "line 1")]
    with pytest.raises(BadInput, match=r"line 3 is not JSON \(the file is cut off there\)"):
        rows('[\n{"q": 1},\n{"q": ', "data.json")
    with pytest.raises(BadInput, match=r"line 2: the list is not closed"):
        rows('[{"q": 1}\n{"q": 2}]', "data.json")
    with pytest.raises(BadInput, match=r"line 2 holds a text"):
        rows('[{"q": 1},\n"q"]', "data.json")


def test_tables(rows):
    quoted = 'id;question;answer\n1;"two\nlines; one ""word""";007\n2;b;"1,080"\n'
    assert rows(quoted, "data.csv") == [
        ({"id": "1", "question": 'two\nlines; one "word"', "answer": "007"}, "line 2"),
        ({"id": "2", "question": "b", "answer": "1,080"}, "line 4"),
    ]
    assert rows("a\tb\n1\t2, 3, 4\n", "data.tsv") == [({"a": "1", "b": "2, 3, 4"}, "line 2")]
    for content, said in [
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 fields, the header has 2"),
        ("a,a\n1,2\n", "line 1 names a column twice"),
        ('a,b\n1,2\n1,"2\n', "is not CSV"),
    ]:
        with pytest.raises(BadInput, match=said):
            rows(content, "data.csv")
    assert len(rows(f"a\n{'x' * 200_000}\n", "data.csv")[0][0]["a"]) == 200_000


def test_parquet(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"q": ["a", "b"], "answer": [7, None], "ids": [[1], [2, 3]]}), path)
    assert [(dict(r.values), r.place) for r in read(str(path))] == [
        ({"q": "a", "answer": 7, "ids": [1]}, f"{path} row 1"),
        ({"q": "b", "answer": None, "ids": [2, 3]}, f"{path} row 2"),
    ]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        list(read(str(path)))


def test_packed_files(tmp_path):
    path = tmp_path / "data.jsonl.gz"
    packed = gzip.compress(f"{ROW}\n{ROW}\n".encode())
    path.write_bytes(packed)
    assert [r.place for r in read(str(path))] == [f"{path} line 1", f"{path} line 2"]
    path.write_bytes(packed[:-10])
    with pytest.raises(BadInput, match="cannot be unpacked"):
        list(read(str(path)))


def test_faults_can_be_collected(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(f"{ROW}\nnope\n{ROW}\n[]\n{ROW}\n")
    faults: list[BadInput] = []
    assert [r.place for r in read(str(path), faults.append)] == [f"{path} line {n}" for n in (1, 3, 5)]
    assert [f.where for f in faults] == [f"{path} line 2", f"{path} line 4"]


def test_places_that_are_no_data(tmp_path):
    with pytest.raises(NotFound, match=r"does not exist.*other\.txt"):
        (tmp_path / "other.txt").touch()
        list(read(str(tmp_path / "data.jsonl")))
    with pytest.raises(BadInput, match=r"no known suffix.*\.parquet"):
        list(read(str(tmp_path / "other.txt")))
    with pytest.raises(BadInput, match="ftp:// is no storage"):
        list(read("ftp://bucket/data.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(BadInput, match="is empty"):
        read_split(str(tmp_path / "empty.jsonl"), "train")
    (tmp_path / "header.csv").write_text("a,b\n")
    with pytest.raises(BadInput, match="is empty"):
        read_split(str(tmp_path / "header.csv"), "train")


def test_splits_of_a_folder(tmp_path):
    def files(*names: str) -> str:
        folder = tmp_path / "-".join(n.replace("/", "_") for n in names)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(ROW)
        return str(folder)

    def found(folder: str, split: str) -> list[str]:
        return [f[len(folder) + 1 :] for f in split_files(folder, split, required=False)]

    shards = files(
        "main/train-00000-of-00002.jsonl", "main/train-00001-of-00002.jsonl", "main/test-00000-of-00001.jsonl", "README.md"
    )
    assert found(shards, "train") == ["main/train-00000-of-00002.jsonl", "main/train-00001-of-00002.jsonl"]
    assert found(shards, "test") == ["main/test-00000-of-00001.jsonl"]
    assert found(files("train.jsonl", "validation.jsonl", "test.jsonl"), "test") == ["test.jsonl"]
    assert found(files("a.jsonl", "b.csv"), "train") == ["a.jsonl", "b.csv"]
    assert found(files("a.jsonl", "b.csv"), "test") == []
    only_test = files("dev.jsonl", "a.jsonl")
    with pytest.raises(BadInput, match=r"has no train files \(found a\.jsonl, dev\.jsonl\)"):
        split_files(only_test, "train")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(
            st.text(min_size=1, max_size=5),
            st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3)),
            max_size=4,
        ),
        max_size=5,
    )
)  # fmt: skip
def test_whatever_json_writes_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("any") / "data.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8", newline="")
    assert [plain(r.values) for r in read(str(path))] == rows
