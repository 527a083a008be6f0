"""`policyloop export MODEL`: a bundle that stands alone, proven to say what the model says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from policyloop.cli.evaluate import MODEL, TASK_HELP


def export(
    model: MODEL,
    to: Annotated[str | None, typer.Option("--to", help="A new folder, or s3://BUCKET/PREFIX (also gs://, az://).")] = None,
    format: Annotated[str | None, typer.Option("--format", help="merged (default), adapter, int8, int4 or gguf.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Of a merged model: base (default) or float32.")] = None,
    gguf_type: Annotated[
        str | None, typer.Option("--gguf-type", help="How GGUF stores matrices: as_is (default), f32, f16, bf16, q8_0.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help=f"Golden prompts and parser. {TASK_HELP} Default: the run's.")
    ] = None,
    register: Annotated[str | None, typer.Option("--register", help="Also the next version of this name in the store.")] = None,
    store: Annotated[str | None, typer.Option("--store", help="Which store (default: POLICYLOOP_STORE, else ./store).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier bundle at the same place.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An export key: export.parity.max_kl=0.02. May be repeated.")
    ] = None,
) -> int:
    """Exit code 0: parity holds. 3: the bundle is written, and may not be promoted."""
    from policyloop.cli.console import printer
    from policyloop.errors import BadInput, Exit
    from policyloop.export.bundle import export as exported
    from policyloop.export.upload import upload
    from policyloop.models.catalogue import resolve
    from policyloop.store import actor, open_store
    from policyloop.store.backend import is_remote
    from policyloop.training.register import publish_bundle

    if to is None and register is None:
        raise BadInput("export without a place", "--to FOLDER or URI, --register NAME, or both", "--to")
    say, path = printer(), resolve(model)
    flags = {"format": format, "dtype": dtype, "gguf_type": gguf_type}
    settings, origin = _settings(path, task, [*(set_ or []), *(f"export.{k}={v}" for k, v in flags.items() if v)], say)
    with tempfile.TemporaryDirectory(prefix="policyloop-export.") as work:
        folder = Path(work) / "bundle" if to is None or is_remote(to) else Path(to.removeprefix("file://")).expanduser()
        made = exported(model, folder, settings, origin, force=force, say=say)
        print("\n".join(made.lines()))
        if to is not None:
            if is_remote(to):
                upload(folder, to, force=force, say=say)
            print(f"wrote {to}")
        if register is not None:
            print(f"registered {publish_bundle(open_store(store), folder, register, by=actor(), reason=f'export of {model}')}")
    return int(Exit.DONE if made.promotable else Exit.NO)


def _settings(path: Path, task: str | None, overrides: list[str], say: Any) -> tuple[Any, Any]:
    """The `export` table of the run's own recipe (or of --task's), the flags over it, and where the model comes from."""
    from policyloop.cli.evaluate import _settings as recipe_of
    from policyloop.export.origin import origin_of, run_of
    from policyloop.recipe import from_tree, load, tree_of

    run = run_of(path)
    if task is not None:
        recipe = recipe_of(task, overrides)
    else:
        tree = {"model": {"base_model_path": "tiny"}} if run is None else tree_of(from_tree(run.manifest()["config"]))
        recipe = load(tree, overrides)
    data = None if task is None else recipe.data
    origin, notes = origin_of(path, recipe.export.parity.prompts, data, recipe.evaluation.seed)
    for note in notes:
        say(f"note: {note}")
    return recipe.export, origin
