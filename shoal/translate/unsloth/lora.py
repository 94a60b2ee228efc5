"""Unsloth's LoRA: `get_peft_model`, on a model in 4 bits unless `load_in_4bit` says otherwise."""

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import LAYERS, LORA_PARAMETERS, set_lora


def compose_lora(source: Source, draft: Draft) -> None:
    """Sets the adapters if the file calls `get_peft_model`, or if settings give a rank."""
    names = {ours: f"get_peft_model.{name}" for ours, name in LORA_PARAMETERS.items()}
    values = {ours: source[name] for ours, name in names.items()}
    if source["lora_rank"] and not source.is_set(names["rank"]):
        values["rank"] = source["lora_rank"]
    bits = "nf4" if source["from_pretrained.load_in_4bit"] else "none"
    used = [name for name in (*names.values(), "lora_rank", "from_pretrained.load_in_4bit") if source.is_set(name)]
    if not set(used) - {"from_pretrained.load_in_4bit"}:
        source.note_unused("from_pretrained.load_in_4bit", why="no adapters are trained, so the model is not frozen")
        return
    if not source.is_set("from_pretrained.load_in_4bit"):
        draft.notes.append(
            'from_pretrained.load_in_4bit: on by Unsloth\'s default; learner.lora.quantization = "none" turns it off'
        )
    values["targets"] = values["targets"] or LAYERS
    set_lora(draft, source.origin(*used), **values, quantization=bits)
