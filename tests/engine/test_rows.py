"""What a reader sees: characters split over tokens (H03), stop strings across tokens (H04), stop ids, limits; stream and run alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from policyloop.engine import Delta, Request
from policyloop.engine.rows import StopText
from policyloop.engine.scripted import Answer, ScriptedEngine
from policyloop.models.template import Renderer
from policyloop.types import Completion, SamplingParams

EOS = 256


def byte_renderer() -> Renderer:
    """One token per byte, in order of `bytes_to_unicode`, and an end token: every character above ASCII is split."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)} | {"<eos>": EOS}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Renderer(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>"))


BYTES = byte_renderer()


def ids_of(text: str) -> list[int]:
    return BYTES.tokenizer(text)["input_ids"]


class Pieces:
    """A stream whose token i is the i-th of given pieces."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)

    def finish(self) -> str:
        return ""


def shown(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str, bool]:
    """What `take` gave after each token and at the end; the text; whether a stop string ended it."""
    text, out = StopText(Pieces(pieces), stops), list[str]()
    for i in range(len(pieces)):
        if text.push(i):
            break
        out.append(text.take())
    text.finish()
    return [*out, text.take(last=True)], text.text, text.stopped


@pytest.mark.parametrize(
    ("pieces", "stops", "want", "ended"),
    [
        (["The quick br", "own", " fox"], ["own fox"], "The quick br", True),  # H04
        (["ple", "as"], ["assistant"], "pleas", False),  # H04: held text is flushed
        (["a", "a", "b"], ["aab"], "", True),
        (["aaaa", "b"], ["aab"], "aa", True),
        (["abcabd"], ["abd"], "abc", True),
        (["ab", "ab", "ac"], ["abac"], "ab", True),  # the first attempt fails inside the second
        (["x STOP y"], ["STOP", "x S"], "", True),  # the earliest place wins, not the first string
        (["\n", "\nQ"], ["\n\n"], "", True),
        (["1", "2", "3"], ["4"], "123", False),
        ([], ["x"], "", False),
    ],
)
def test_stop_strings(pieces: list[str], stops: list[str], want: str, ended: bool) -> None:
    out, text, stopped = shown(pieces, stops)
    assert (text, stopped) == (want, ended)
    assert "".join(out) == want


def test_nothing_of_a_stop_string_is_ever_shown() -> None:
    out, _, _ = shown(["The quick br", "own", " fox"], ["own fox"])
    assert out == ["The quick br", "", ""]
    out, _, _ = shown(["ple", "as"], ["assistant"])
    assert out == ["ple", "", "as"]


TEXTS = ["plain", "客单价 is 3", "🙂", "a🙂b", "é\n", "عربي 🙂🙂", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_text(text: str) -> None:
    """H03: bytes one by one; joined deltas = full decode, no replacement sign on the way."""
    deltas, done = both(ids_of(text), SamplingParams(max_new_tokens=100))
    assert "".join(d.text for d in deltas) == done.text == text
    assert not any("\N{REPLACEMENT CHARACTER}" in d.text for d in deltas)
    assert tuple(i for d in deltas for i in d.token_ids) == done.token_ids
    assert tuple(x for d in deltas for x in d.logprobs) == done.logprobs
    assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + ["stop"]


def test_a_model_that_ends_inside_a_character() -> None:
    """The held bytes come out at the end, as the one sign that full decoding gives."""
    deltas, done = both(ids_of("ab🙂")[:-1], SamplingParams(max_new_tokens=100))
    assert "".join(d.text for d in deltas) == done.text == "ab\N{REPLACEMENT CHARACTER}"


def test_hold_back_is_bounded() -> None:
    """Bytes that never become a character: signs flow, at most three are held; a real character behind them is whole."""
    broken = ids_of("é")[:1] * 30
    stream = BYTES.stream()
    given = ""
    for n, i in enumerate(broken, 1):
        given += stream.push([i])
        assert len(given) >= n - 3
    given += "".join(stream.push([i]) for i in ids_of("🙂!")) + stream.finish()
    assert given == BYTES.decode(broken + ids_of("🙂!"))
    assert given.endswith("🙂!")


def test_what_ends_an_answer() -> None:
    """Stop id (own or asked for), stop string, limit: text without them, token ids with everything that was sampled."""

    def one(ids: Sequence[int], **settings: object) -> Completion:
        params = SamplingParams(max_new_tokens=int(settings.pop("limit", 50)), **settings)  # type: ignore[arg-type]
        return ScriptedEngine([ids], BYTES).run([Request("u", (1,), params)])[0]

    end = [*ids_of("hi"), EOS, *ids_of("never")]
    done = one(end)
    assert (done.text, done.finish_reason, list(done.token_ids)) == ("hi", "stop", end[:3])
    done = one(ids_of("hi there"), stop_ids=(ids_of("i")[0],))
    assert (done.text, done.finish_reason, list(done.token_ids)) == ("h", "stop", ids_of("hi"))
    done = one(ids_of("one two three"), stop=(" two", "e t"))
    assert (done.text, done.finish_reason, list(done.token_ids)) == ("on", "stop", ids_of("one t"))
    done = one(ids_of("one two"), limit=4)
    assert (done.text, done.finish_reason, list(done.token_ids)) == ("one ", "length", ids_of("one "))
    assert one(ids_of("x🙂y"), stop=("🙂",)).text == "x"
    done = one(ids_of("abc"), limit=3, stop=("c",))
    assert done.finish_reason == "stop"  # the last token that fits completes the stop string
    assert one(ids_of("ab"), logprobs=False).logprobs != one(ids_of("ab")).logprobs


def test_scripted_log_probs_are_exact() -> None:
    engine = ScriptedEngine(lambda r, sample: Answer([7, 8], [-0.25 * sample, -3.0]))
    done = engine.run([Request("u", (1,), SamplingParams(max_new_tokens=9, n=2), first_sample=3)])
    assert [c.logprobs for c in done] == [(-0.75, -3.0), (-1.0, -3.0)]
    assert engine.requests[0].uid == "u"


def both(ids: Sequence[int], params: SamplingParams) -> tuple[list[Delta], Completion]:
    engine = ScriptedEngine([[*ids, EOS]], BYTES)

    async def read() -> list[Delta]:
        return [d async for d in engine.stream(Request("u", (1,), params))]

    return asyncio.run(read()), engine.run([Request("u", (1,), params)])[0]
