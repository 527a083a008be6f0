"""int8 and int4 weights by torchao, through transformers' own TorchAoConfig: any transformers program loads them again.

Only linears inside are quantised; embedding and head stay as the base stores them, and tied ones stay tied. int8 is a scale per row.
int4 (a scale per 32 inputs) is rounding to nearest without data: small models do not survive it, and the parity check says so.

Example:
    >>> int8(Source.of(folder), out, ExportSettings())
    ('quantised', {'bits': 8, 'group': None, 'source': 'policy'})
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, TorchAoConfig
from transformers.utils.logging import disable_progress_bar

from policyloop.errors import BadInput
from policyloop.export import ExportSettings, Kind
from policyloop.export.merge import ids_only, merged
from policyloop.export.source import Source

GROUP = 32


def int8(source: Source, folder: Path, settings: ExportSettings) -> Kind:
    _torchao()
    from torchao.quantization import Int8WeightOnlyConfig

    return _quantised(source, folder, settings, Int8WeightOnlyConfig(version=2), {"bits": 8, "group": None})


def int4(source: Source, folder: Path, settings: ExportSettings) -> Kind:
    """Errors: BadInput where a linear's inputs do not come in groups."""
    _torchao()
    import torch
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    for _, tensors in source.shards():
        odd = [n for n, t in tensors.items() if n.endswith("_proj.weight") and t.shape[-1] % GROUP]
        if odd:
            raise BadInput(f"{odd[0]} has {tensors[odd[0]].shape[-1]} inputs", f"a multiple of {GROUP} for int4", "--format")
    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP))  # type: ignore[attr-defined]
    return _quantised(source, folder, settings, config, {"bits": 4, "group": GROUP})


def _torchao() -> None:
    if importlib.util.find_spec("torchao") is None:
        raise BadInput("torchao is not installed", "`pip install 'policyloop[quant]'`", "the installation")


def _quantised(source: Source, folder: Path, settings: ExportSettings, config: Any, about: dict[str, Any]) -> Kind:
    """Merge first, then quantise what was merged: the numbers that ship are those of the merged model."""
    disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="merged.", dir=folder.parent) as work:
        merged(source, Path(work), settings)
        model = AutoModelForCausalLM.from_pretrained(
            work, dtype="auto", quantization_config=TorchAoConfig(config), local_files_only=True
        )
        model.save_pretrained(folder)
    ids_only(source, folder)
    return "quantised", {**about, "source": source.folder.name}
