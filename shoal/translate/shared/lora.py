"""Low-rank adapters, from the settings of peft that other systems pass on."""

from collections.abc import Sequence
from typing import Any

from shoal.config.tables.lora import ALL_LINEAR
from shoal.translate.shared.draft import Draft, Origin

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of Llama, Qwen, Mistral and Gemma, by name."""
PEFT_TARGETS = ("q_proj", "v_proj")
"""The layers that get an adapter by peft's default, in models of these families."""


def set_lora(
    draft: Draft,
    origin: Origin,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
    rslora: bool = False,
    quantization: str = "none",
) -> None:
    """Sets `learner.lora`. Without targets it uses peft's default targets, with a note. Rank 0 means no adapter."""
    if rank < 1:
        return
    names = list(targets or ())
    if not names:
        names = list(PEFT_TARGETS)
        draft.notes.append(
            f"learner.lora.target_modules: {' and '.join(names)} are peft's default for Llama, Qwen, Mistral and "
            "Gemma; give another model's with --set"
        )
    table: dict[str, Any] = {"rank": rank, "alpha": int(alpha), "dropout": dropout, "target_modules": names}
    if set(names) == set(LAYERS):
        table["target_modules"] = [ALL_LINEAR]
    table |= {"rslora": True} if rslora else {}
    table |= {"quantization": quantization} if quantization != "none" else {}
    draft.set("learner.lora", table, origin)
