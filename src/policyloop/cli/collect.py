"""`policyloop collect curate|stats|forget`: from what was served and said to training data, and out of it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from policyloop.cli.console import printer
from policyloop.collect import CollectSettings
from policyloop.config import assigned, build, lay_over
from policyloop.errors import No
from policyloop.tasks import DataSettings

StoreOption = Annotated[
    str | None, typer.Option("--store", help="Where journal and sets lie (default: POLICYLOOP_STORE, else store).")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="A field of the settings: name=value. May be repeated.")]
HeldOutOption = Annotated[
    list[str] | None,
    typer.Option("--held-out", help="A task, data file or recipe whose held-out questions must not be trained on."),
]
JournalOption = Annotated[
    Path | None, typer.Option("--journal", help="A local journal folder: what dead processes left there is shipped first.")
]


def curate(
    store: StoreOption = None,
    held_out: HeldOutOption = None,
    journal: JournalOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also put the files here.")] = None,
    set_: SetOption = None,
) -> None:
    """A new set on the shelf `datasets` of the store. Exit codes: 0 there is a set, 3 nothing to learn from."""
    from policyloop.collect.curate import curate as make

    say, chosen = printer(), settings_of(store, set_)
    ship(journal, chosen)
    made = make(chosen, suites(held_out))
    for line in count_lines(made.counts, made.rows.set_aside):
        say(line)
    if made.version is None:
        raise No("no request has feedback to learn from yet", "feedback on served requests (docs/feedback.md)")
    say(f"set {made.version}: {made.version.id}")
    if out is not None:
        from policyloop.store import open_store

        say(str(open_store(chosen.store).on("datasets").fetch(made.version, out)))


def stats(
    store: StoreOption = None, held_out: HeldOutOption = None, journal: JournalOption = None, set_: SetOption = None
) -> None:
    """What a curation would hold, and what is new since the last one; nothing is written."""
    from policyloop.collect.curate import curate as make
    from policyloop.collect.curate import new_evidence

    say, chosen = printer(), settings_of(store, set_)
    ship(journal, chosen)
    made = make(chosen, suites(held_out), dry_run=True)
    for line in count_lines(made.counts, made.rows.set_aside):
        say(line)
    say(f"new since the last set: {new_evidence(chosen):,} requests with feedback")


def forget(
    user: Annotated[str, typer.Option("--user", help="A user, session or key, as requests named it.")],
    store: StoreOption = None,
    journal: JournalOption = None,
) -> None:
    """Everything of one person out of journal, feedback, sets and their copies; lists the versions that were trained on the rows."""
    from policyloop.collect.forget import forget as away

    say = printer()
    ship(journal, CollectSettings(store=store))
    found = away(user, store)
    say(f"{found.rows:,} rows of the journal, {len(found.sets)} sets, {len(found.copies)} local copies")
    for old, new in found.sets.items():
        say(f"{old} is deleted; {new or 'nothing was left of it'}")
    for version in found.versions:
        say(f"{version} was trained on some of the rows: it has to be retrained or retired by you")


# --- what the arguments mean ------------------------------------------------------------------------------------------------


def settings_of(store: str | None, set_: Sequence[str] | None) -> CollectSettings:
    tree = {} if store is None else {"store": store}
    for assignment in set_ or ():
        tree = lay_over(tree, assigned(assignment))
    return build(CollectSettings, tree, "collect")


def suites(sources: Sequence[str] | None) -> list[DataSettings]:
    from policyloop.cli.data import given_by

    return [given_by(source, None, None, None, None, None).data for source in sources or ()]


def ship(journal: Path | None, chosen: CollectSettings) -> None:
    if journal is not None:
        from policyloop.journal.shipping import Shelf
        from policyloop.journal.writer import ship_left_behind

        ship_left_behind(journal, Shelf.at(chosen.store))


def count_lines(counts: dict[str, int], set_aside: dict[str, int]) -> list[str]:
    """One figure a line, then who was not listened to."""
    shown = [f"{name.replace('_', ' ')}: {n:,}" for name, n in counts.items()]
    return shown + [
        f"set aside: voice {voice} with {n:,} votes (if it is yours: --set shared_keys, or a key with scope label)"
        for voice, n in set_aside.items()
    ]


def request_lines(request_id: str, store: str | None) -> list[str]:
    """One request, followed. Errors: NotFound."""
    from datetime import UTC, datetime

    from policyloop.collect.curate import last_words
    from policyloop.collect.trace import trace

    def when(at: float) -> str:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")

    found = trace(request_id, store)
    r = found["record"]
    ids = "redacted, so no token ids" if r["redacted"] else f"{len(r['token_ids'])} token ids with log-probs"
    lines = [
        f"request {request_id} on {when(r['at'])} by key {r['key'] or '-'}, user {r['user'] or '-'}, session {r['session'] or '-'}",
        f"  asked: {last_words(r['prompt'])!r}",
        f"  answered by {r['version'] or r['model']} ({r['source']}): {r['text']!r}",
        f"  {r['tokens']} tokens, {r['finish_reason'] or 'end not known'}; {ids}",
        *(f"  feedback on {when(f['at'])} by {f['key']}: {f['kind']} {f['value']}" for f in found["feedback"]),
    ]
    lines.append(f"  in sets: {', '.join(found['sets']) or 'none yet'}")
    return [*lines, f"  learned by: {', '.join(found['versions']) or 'no version yet'}"]
