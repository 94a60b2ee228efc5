"""Unsloth's LoRA: `get_peft_model`, on a model in 4 bits unless `load_in_4bit` says otherwise."""

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import LAYERS, set_lora

_CALL = "get_peft_model"
_NAMES = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora")


def compose_lora(source: Source, draft: Draft) -> None:
    """Sets the adapters if the file calls `get_peft_model`, or if settings give a rank."""
    names = [f"{_CALL}.{name}" for name in _NAMES]
    rank, alpha, dropout, targets, rslora = (source[name] for name in names)
    rank = rank if source.is_set(names[0]) or not source["lora_rank"] else source["lora_rank"]
    bits = "nf4" if source["from_pretrained.load_in_4bit"] else "none"
    used = [name for name in (*names, "lora_rank", "from_pretrained.load_in_4bit") if source.is_set(name)]
    if not any(source.is_set(name) for name in (*names, "lora_rank")):
        source.note_unused("from_pretrained.load_in_4bit", why="no adapters are trained, so the model is not frozen")
        return
    if not source.is_set("from_pretrained.load_in_4bit"):
        draft.notes.append(
            'from_pretrained.load_in_4bit: on by Unsloth\'s default; turn it off with quantization "none"'
        )
    origin, targets = source.origin(*used), targets or LAYERS
    set_lora(draft, origin, rank=rank, alpha=alpha, dropout=dropout, targets=targets, rslora=rslora, quantization=bits)
