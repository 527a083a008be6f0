"""The field tables of docs/config.md, written from the settings classes: every table, its docstring, its fields with type and default.

In: the dataclasses below `Recipe`. Out: the part of docs/config.md between `<!-- fields -->` and `<!-- /fields -->`.

Example:
    $ python scripts/config_docs.py           # write
    $ python scripts/config_docs.py --check   # exit 1 when the file differs
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from policyloop.algorithms import ALGORITHMS
from policyloop.algorithms.parts.schedule import SCHEDULES
from policyloop.config import known, slots
from policyloop.recipe import Recipe
from policyloop.spellings import ALIASES, FOREIGN

PAGE = Path(__file__).parents[1] / "docs" / "config.md"
START, END = "<!-- fields -->", "<!-- /fields -->"
WORDS = {int: "whole number", float: "number", str: "text", bool: "true/false", Any: "anything", type(None): "null"}
REFERENCE = re.compile(r"(?: \(|; see )ALGORITHMS §[\d.]+\)?")  # numbers of a document that is not among these pages


# --- which tables there are -------------------------------------------------------------------------------------------------


def sections() -> dict[type, str]:
    """Settings class -> heading, depth first; a part that several tables hold stands under the first."""
    found: dict[type, str] = {Recipe: "The recipe"}
    _walk(Recipe, "", found)
    return found | {cls: row for row, cls in SCHEDULES.items()}


def _walk(cls: type, path: str, found: dict[type, str]) -> None:
    for name, hint in known(cls).items():
        here = f"{path}.{name}" if path else name
        rows = slots(cls).get(name)
        if rows is not None:
            here += "[]" if get_origin(hint) is tuple else ""
            below = {part: f"{here}.{row}" for row, part in rows.items()}
        elif (inner := tables_in(hint)) and len(inner) > 1:  # the strategies: `type` chooses
            below = {part: f"{here}, type {', '.join(_types(part))}" for part in inner}
        else:
            below = dict.fromkeys(inner, here)
        for part, heading in below.items():
            if part not in found:
                found[part] = heading
                _walk(part, heading.partition(",")[0], found)


def tables_in(hint: Any) -> list[type]:
    """The settings classes a value of this type may be; schedules, which stand in a number's place, left out."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [o for o in options if dataclasses.is_dataclass(o) and o not in SCHEDULES.values()]


def _types(cls: type) -> list[str]:
    return [name for name, value in ALGORITHMS.items() if type(value) is cls]


# --- one field --------------------------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def type_of(cls: type, name: str, headings: Mapping[type, str]) -> str:
    hint = known(cls)[name]
    rows = slots(cls).get(name)
    if rows is None:
        return spell(hint, headings)
    parts = ", ".join(f"[{row}](#{anchor(headings[part])})" for row, part in rows.items())
    if get_origin(hint) is tuple:
        return f"list of {parts}"
    return f"{parts} or null" if type(None) in get_args(hint) else parts


def spell(hint: Any, headings: Mapping[type, str]) -> str:
    """A type in a reader's words."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(spell(o, headings) for o in options)
    if origin is Literal:
        return ", ".join(f"`{o}`" for o in options)
    if origin is tuple:
        inner = [spell(o, headings) for o in options if o is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in options else f"list of {len(inner)}: {', '.join(inner)}"
    if origin is Mapping:
        return "table" if options[1] is Any else f"table of {spell(options[1], headings)}"
    if hint in headings:
        heading = headings[hint]
        word = heading if hint in SCHEDULES.values() else "table" if "," not in heading else heading.partition(", ")[2]
        return f"[{word}](#{anchor(heading)})"
    return WORDS[hint]


def default_of(cls: type, field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "needed"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    rows = {part: row for row, part in slots(cls).get(field.name, {}).items()}
    if value is not None and rows:
        return f"`[{', '.join(rows[type(v)] for v in value)}]`" if isinstance(value, tuple) else f"`{rows[type(value)]}`"
    if dataclasses.is_dataclass(value):
        names = [name for name, algorithm in ALGORITHMS.items() if algorithm == value]
        return f"`type: {names[0]}`" if names and cls is Recipe else "its defaults"
    return f"`{yaml(value)}`"


def yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(yaml(v) for v in value)}]"
    return {"": '""'}.get(value, value) if isinstance(value, str) else repr(value)


# --- the page ---------------------------------------------------------------------------------------------------------------


def meaning(cls: type) -> str:
    """The docstring, with `<` outside code spans made harmless."""
    text = REFERENCE.sub("", inspect.getdoc(cls) or "")
    return "".join(s if s.startswith("`") else s.replace("<", "&lt;") for s in re.split(r"(`[^`]*`)", text))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, *rows)).replace("\n", f"\n|{'---|' * len(head)}\n", 1)


def section(cls: type, headings: Mapping[type, str]) -> str:
    rows = [(f"`{f.name}`", type_of(cls, f.name, headings), default_of(cls, f)) for f in dataclasses.fields(cls)]
    body = table(("Field", "Type", "Default"), rows) if rows else "No fields."
    return f"### {headings[cls]}\n\n{meaning(cls)}\n\n{body}"


def generated() -> str:
    headings = sections()
    aliases = table(("Also", "Means"), [(f"`{old}`", f"`{new}`") for old, new in ALIASES.items()])
    foreign = table(("There", "Here"), [(f"`{key}`", ours) for key, ours in FOREIGN.items()])
    return "\n\n".join(
        [
            "## Every table and field",
            *(section(cls, headings) for cls in headings),
            "## Other spellings",
            "These are read as ours; giving both with different values is an error.",
            aliases,
            "## Keys of other trainers",
            "These are not read: as an unknown key each is answered with its name here.",
            foreign,
        ]
    )


def page(text: str) -> str:
    """The page with its generated part made new."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"{PAGE.name} lacks {START} or {END}")
    return f"{before}{START}\n\n{generated()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        raise SystemExit("usage: python scripts/config_docs.py [--check]")
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if arguments:
        if old != new:
            print("docs/config.md is not what the settings say: python scripts/config_docs.py", file=sys.stderr)
        return int(old != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
