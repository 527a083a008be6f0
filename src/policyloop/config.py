"""Configuration: YAML <-> typed tree, strictly. One mechanism: YAML + `--set a.b=c`.

`build(cls, tree)` turns a mapping into a `@settings` dataclass; an unknown key is an error that names the known ones. A slot (a field with a table
of classes) holds one key, the row of its table: `surrogate: {clip: {high: 0.28}}`. Over an existing value (`base`), given fields replace its own
if the row is the same class, else the part starts from its defaults; `null` = none; `pkg.mod:Name: {...}` = a user's class.

Example:
    >>> build(TrainingSettings, load_yaml("lr: 1e-6"), "training").lr
    1e-06
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml

from policyloop.errors import BadInput, Problem

T = TypeVar("T")


class UnknownKey(BadInput):
    """A key that no settings class has; `key` is its last name, so that a recipe can say where its meaning lives."""

    def __init__(self, key: str, path: str, known: Iterable[str], where: str, hint: str | None = None) -> None:
        known = list(known)
        near = difflib.get_close_matches(key, known, 1)
        meant = f"; here it is {hint}" if hint else f"; did you mean {near[0]}?" if near else ""
        super().__init__(f"unknown key {path}{meant}", _names(known), where)
        self.key, self.path, self.known = key, path, known

    def with_hint(self, hint: str | None) -> UnknownKey:
        return UnknownKey(self.key, self.path, self.known, self.where, hint)


# --- YAML 1.2 core ----------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML 1.2 core: 1e-6 is a number, yes/no/on/off are strings, a duplicate key is an error, aliases are not expanded without end."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise BadInput(f"key {key!r} in line {line} is not a name", "text keys", "the YAML file")
            if key in seen:
                raise BadInput(f"key {key} stands twice (line {line})", "each key once", "the YAML file")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise BadInput(f"an alias (*) in line {self.peek_event().start_mark.line + 1}", "plain values", "the YAML file")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)
_Loader.add_constructor(
    "tag:yaml.org,2002:int", lambda self, node: int(node.value, 0) if node.value[:2] in ("0o", "0x") else int(node.value)
)
_Loader.add_constructor(
    "tag:yaml.org,2002:float", lambda self, node: float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
)


def load_yaml(source: str | Path) -> dict[str, Any]:
    """A mapping from YAML text or a file. Errors: BadInput with the line, NotFound-like BadInput for a missing file."""
    where = str(source) if isinstance(source, Path) else "the YAML text"
    try:
        text = source.read_text(encoding="utf-8-sig") if isinstance(source, Path) else source
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"{source} cannot be read ({problem})", "a UTF-8 YAML file", "CONFIG") from problem
    if len(text) > 1_000_000:
        raise BadInput(f"{where} has {len(text):,} characters", "at most 1,000,000", "CONFIG")
    tree = _parse(text, where)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise BadInput(f"{where} holds a {type(tree).__name__}", "tables with keys", where)
    return tree


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        reason = getattr(problem, "problem", None) or str(problem).partition("\n")[0]
        raise BadInput(f"{where} is not YAML{line}: {reason}", "YAML (spaces, not tabs)", where) from problem
    except (RecursionError, ValueError) as problem:
        raise BadInput(f"{where} cannot be read ({type(problem).__name__})", "ordinary nesting and numbers", where) from problem


def assigned(assignment: str) -> dict[str, Any]:
    """`a.b=c` as a tree {a: {b: c}}; c is YAML (`null`, `0.3`, `[a, b]`, `{clip: {high: 0.28}}`)."""
    path, sign, value = assignment.partition("=")
    keys = [k.strip().replace("-", "_") for k in path.split(".")]
    if not sign or not all(keys):
        raise BadInput(f"--set {assignment}", "key.key=value", "--set")
    tree = _parse(value, f"--set {assignment}" if len(assignment) < 100 else f"--set {assignment[:100]}…")
    for key in reversed(keys):
        tree = {key: tree}
    return tree


def override(tree: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """`a.b=c` laid over the tree."""
    return lay_over(tree, assigned(assignment))


def spelled(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Keys with `_` for `-`. Errors: BadInput where both spellings stand."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        name = str(key).replace("-", "_")
        if name in out:
            raise BadInput(f"key {where + '.' if where else ''}{name} stands twice, with - and with _", "each key once", where)
        out[name] = value
    return out


def lay_over(tree: Mapping[str, Any], change: Mapping[str, Any], parts: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Mappings merge, everything else replaces; in a slot (`parts`) another row replaces the part."""
    out = dict(tree)
    for key, value in change.items():
        old = out.get(key)
        merge = isinstance(old, Mapping) and isinstance(value, Mapping) and not (key in parts and value and {*old} != {*value})
        out[key] = lay_over(typing.cast(Mapping, old), value, parts) if merge else value
    return out


# --- mapping -> dataclass ---------------------------------------------------------------------------------------------------


def build(cls: type[T], tree: Mapping[str, Any] | None, where: str = "", base: T | None = None) -> T:
    """An instance of the settings class from a mapping, over `base` where given. Errors: BadInput naming key, value and what is allowed."""
    tree = {} if tree is None else tree
    if not isinstance(tree, Mapping):
        raise BadInput(f"{where} = {tree!r}", f"a table with {_names(known(cls))}", where)
    hints = known(cls)
    values: dict[str, Any] = {}
    for name, raw in spelled(tree, where).items():
        path = f"{where}.{name}" if where else name
        if name not in hints:
            raise UnknownKey(name, path, hints, where or "the config")
        old = getattr(base, name) if base is not None else None
        values[name] = _slot(cls, name, raw, path, old) if name in slots(cls) else convert(hints[name], raw, path, old)
    try:
        return dataclasses.replace(base, **values) if base is not None else cls(**values)  # type: ignore[type-var]
    except TypeError as problem:
        missing = re.findall(r"'(\w+)'", str(problem))
        raise BadInput(f"{where or 'the config'} lacks {', '.join(missing)}", _names(hints), where or "the config") from problem
    except ValueError as problem:
        raise BadInput(f"{where}: {problem}", "", where) from problem


@cache
def known(cls: type) -> dict[str, Any]:
    """Field name -> type of a settings class, ClassVars left out."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def slots(cls: type) -> Mapping[str, Mapping[str, type]]:
    return getattr(cls, "slots", {})


def _slot(cls: type, name: str, raw: Any, path: str, old: Any) -> Any:
    """One part, or a tuple of parts, by the rows of the slot's table."""
    table = slots(cls)[name]
    hint = known(cls)[name]
    if raw is None and type(None) in get_args(hint):
        return None
    several = get_origin(hint) is tuple
    if several and isinstance(raw, Sequence) and not isinstance(raw, str):
        return tuple(_part(cls, name, table, item, f"{path}[{i}]", None) for i, item in enumerate(raw))
    part = _part(cls, name, table, raw, path, old)
    return (part,) if several else part


def _part(cls: type, name: str, table: Mapping[str, type], raw: Any, path: str, old: Any) -> Any:
    if isinstance(raw, str):
        raw = {raw: None}
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise BadInput(f"{path} = {raw!r}", f"one of {_names(table)}, with its fields", path)
    row, fields = next((str(key), value) for key, value in raw.items())
    if not isinstance(fields, Mapping | None):
        raise BadInput(f"{path}.{row} = {fields!r}", "a table of its fields", path)
    if ":" in row:
        importer = getattr(cls, "import_paths", {}).get(name)
        if importer is not None:
            return build(table[importer], {"path": row, **(fields or {})}, path)
        return build(_imported(row, path), fields, path)
    part = table.get(row) or table.get(row.replace("-", "_"))
    if part is None:
        near = difflib.get_close_matches(row, table, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise BadInput(f"{path}: {row!r} is not in the table{meant}", f"one of {_names(table)}, or pkg.mod:Name", path)
    return build(part, fields, f"{path}.{row}", old if type(old) is part else None)


def _imported(name: str, path: str) -> type:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadInput(f"{path}: {name} cannot be imported ({problem})", "pkg.mod:Name", path) from problem
    if not dataclasses.is_dataclass(found):
        raise BadInput(f"{path}: {name} is not a settings class", "a class decorated with policyloop.types.settings", path)
    return typing.cast(type, found)


def convert(hint: Any, raw: Any, path: str, old: Any = None) -> Any:
    """A value of type `hint`, without guessing: no number from a string or a boolean, no string from a number."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(options, raw, path, old)
    if origin is Literal:
        if raw not in options or isinstance(raw, bool) != isinstance(next(o for o in options if o == raw), bool):
            raise BadInput(f"{path} = {raw!r}", f"one of {', '.join(map(str, options))}", path)
        return raw
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), raw, path, old if type(old) is hint else None)
    if origin is tuple:
        return _tuple(options, raw, path)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        if not isinstance(raw, Mapping):
            raise BadInput(f"{path} = {raw!r}", "a table", path)
        return {k: convert(options[1] if options else Any, v, f"{path}.{k}") for k, v in raw.items()}
    return _scalar(hint, raw, path)


def _scalar(hint: Any, raw: Any, path: str) -> Any:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if hint is Any:
        return raw
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw) if abs(raw) < 10**300 else math.inf
    if hint not in names or not isinstance(raw, hint) or (isinstance(raw, bool) and hint is not bool):
        raise BadInput(f"{path} = {raw!r}", names.get(hint, str(hint)), path)
    if isinstance(raw, float) and not math.isfinite(raw):
        raise BadInput(f"{path} = {raw}", "a finite number", path)
    return raw


def _tuple(options: tuple[Any, ...], raw: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise BadInput(f"{path} = {raw!r}", "a list", path)
    if options[-1] is Ellipsis:
        return tuple(convert(options[0], x, f"{path}[{i}]") for i, x in enumerate(raw))
    if len(raw) != len(options):
        raise BadInput(f"{path} has {len(raw)} entries", f"{len(options)}", path)
    return tuple(convert(o, x, f"{path}[{i}]") for i, (o, x) in enumerate(zip(options, raw, strict=True)))


def _union(options: tuple[Any, ...], raw: Any, path: str, old: Any) -> Any:
    if raw is None and type(None) in options:
        return None
    rest = [o for o in options if o is not type(None)]
    row: dict[str, type] = {o.__name__.lower(): o for o in rest if isinstance(o, type) and dataclasses.is_dataclass(o)}
    if isinstance(raw, Mapping) and len(row) > 1:  # a schedule in a number's place
        name, fields = next(iter(raw.items()), ("", None))
        if len(raw) != 1 or name not in row:
            raise BadInput(f"{path} = {raw!r}", f"a plain value, or one of {_names(row)} with its fields", path)
        return build(row[name], fields, f"{path}.{name}")
    problems: list[Problem] = []
    for option in rest:
        try:
            return convert(option, raw, path, old)
        except BadInput as problem:
            problems.append(problem)
    if len(problems) == 1:
        raise problems[0]
    allowed = " or ".join(dict.fromkeys(p.allowed for p in problems))
    raise BadInput(f"{path} = {raw!r}", allowed + (" or null" if type(None) in options else ""), path)


# --- dataclass -> mapping ---------------------------------------------------------------------------------------------------


def to_tree(value: Any) -> Any:
    """The inverse of `build`: plain mappings, lists and scalars, parts under the name of their row."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        if isinstance(value, (tuple, list)):
            return [to_tree(v) for v in value]
        return {k: to_tree(v) for k, v in value.items()} if isinstance(value, Mapping) else value
    tables = slots(type(value))
    out: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.name in tables and isinstance(item, tuple):
            out[field.name] = [_named(tables[field.name], x) for x in item]
        elif field.name in tables and item is not None:
            out[field.name] = _named(tables[field.name], item)
        else:
            out[field.name] = to_tree(item)
            if dataclasses.is_dataclass(item) and float in get_args(
                known(type(value))[field.name]
            ):  # a schedule in a number's place
                out[field.name] = {type(item).__name__.lower(): out[field.name]}
    return out


def _named(table: Mapping[str, type], part: Any) -> dict[str, Any]:
    names = [name for name, cls in table.items() if cls is type(part)]
    if names:
        return {names[0]: to_tree(part)}
    if callable(getattr(part, "function", None)):  # a function object of the Python API: its name is all that can be written down
        return {"given": getattr(part.function, "__name__", repr(part.function))}
    return {f"{type(part).__module__}:{type(part).__qualname__}": to_tree(part)}


def _names(names: Any) -> str:
    return ", ".join(names)
