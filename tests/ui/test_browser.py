"""The page in a real browser: a person gives a key, promotes, rolls back; every page draws, in both languages, and throws nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from browser import CHROMIUM, Tab, browsing
from made_world import make_world

from policyloop.api.keys import KeyFile
from policyloop.api.running import bound
from policyloop.store import open_store
from policyloop.ui import Sources
from policyloop.ui.app import make_console

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]


@contextlib.asynccontextmanager
async def served(world: Any) -> AsyncIterator[str]:
    runs, store, keys, _ = world
    sock = bound("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(make_console(Sources(runs, store), KeyFile(keys)), log_level="warning", lifespan="off")
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve([sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def at(tab: Tab, address: str) -> str:
    """Go to a page; its text once it is drawn."""
    before = await tab.run("document.getElementById('main')?.dataset.drawn || '0'")
    await tab.run(f"location.hash = {address!r}")
    await tab.until(f"document.getElementById('main').dataset.drawn > {before}")
    return await tab.run("document.getElementById('main').innerText")


async def decide(tab: Tab, button: str, reason: str, stable: str) -> None:
    await tab.until(f"!document.getElementById('{button}').disabled")
    await tab.run(f"document.getElementById('{button}').click(); document.getElementById('reason').value = {reason!r}")
    await tab.run("document.getElementById('confirm').click()")
    await tab.until(f"document.getElementById('stable')?.textContent === '{stable}'")


def test_a_person_promotes_and_rolls_back_with_a_key(tmp_path: Path) -> None:
    world = make_world(tmp_path)

    async def story() -> None:
        async with served(world) as url, browsing(f"{url}/#/models/math?lang=en") as tab:
            await tab.until("document.getElementById('rollback')")
            assert await tab.run("document.getElementById('promote').disabled && document.getElementById('rollback').disabled")
            await tab.run(f"document.getElementById('key').click(); document.getElementById('token').value = {world[3]!r}")
            await tab.run("document.getElementById('confirm').click()")
            await decide(tab, "promote", "looks right", "@3")
            await decide(tab, "rollback", "worse on units", "@2")
            assert tab.wrong == []

    asyncio.run(story())
    last, before = open_store(world[1]).events("math")[:-3:-1]
    assert (last.type, last.by, last.reason, last.stable) == ("rolled_back", "ann", "worse on units", 2)
    assert (before.type, before.by, before.reason, before.stable) == ("promoted", "ann", "looks right", 3)


def test_every_page_draws_in_both_languages_and_throws_nothing(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    report = open_store(world[1]).state("math").report
    expected = {
        "#/": ("What serves", "正在服务", "math@2"),
        "#/runs?show=first,second": ("Held-out accuracy", "留出集准确率", "second"),
        "#/runs/first": ("Pass-rate map", "通过率图", "60"),
        "#/runs/first/steps/60": ("Signal", "信号", "She has 3 apples & gets 4."),
        "#/runs/first/steps/60/0": ("Right answer", "正确答案", "<b>8"),  # a model's markup is text
        "#/models": ("Candidate", "候选", "math"),
        "#/models/math": ("Release river", "发布之河", "round 3"),
        f"#/models/math/report/{report}": ("Report", "报告", "not_worse_bound"),
        "#/feedback": ("By kind", "按类型", "thumb"),
        "#/trace/r1": ("Follow a request", "追踪一个请求", "3 + 4?"),
    }

    async def story() -> None:
        async with served(world) as url, browsing(url) as tab:
            await tab.until("document.getElementById('main')?.dataset.drawn")
            for n, lang in enumerate(("en", "zh")):
                for address, words in expected.items():
                    text = await at(tab, f"{address}{'&' if '?' in address else '?'}lang={lang}&theme={('light', 'dark')[n]}")
                    assert words[n] in text and words[2] in text, (address, lang, text)
                    assert await tab.run("document.getElementById('problem').hidden")
                    assert await tab.run("[...document.querySelectorAll('button, a, input')].every((x) => x.innerText || x.ariaLabel || x.labels?.length || x.ariaHidden || !x.checkVisibility() || x.closest('dialog') || x.id === 'skip')")  # fmt: skip
            assert "No such page" in (await at(tab, "#/nowhere?lang=en")) + await tab.run(
                "document.getElementById('problem').innerText"
            )
            assert tab.wrong == []

    asyncio.run(story())
