"""verl's LoRA, of FSDP and of Megatron."""

from shoal.config.tables.lora import ALL_LINEAR
from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.lora import set_lora
from shoal.translate.verl.names import MODEL

_MEGATRON = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}
"""Megatron's linear layers. Each stands for several layers of the model."""


def compose_lora(source: Source, draft: Draft) -> None:
    """Sets the adapters if one of the ranks is above 0. The rank of FSDP has precedence."""
    names = [f"{MODEL}.{name}" for name in ("lora_rank", "lora_alpha", "target_modules")]
    theirs = [f"{MODEL}.lora.{name}" for name in ("rank", "alpha", "target_modules", "dropout")]
    excluded = [f"{MODEL}.{name}" for name in ("exclude_modules", "lora.exclude_modules")]
    if source[names[0]] < 1 and source[theirs[0]] < 1:
        source.note_unused(draft, *names[1:], *theirs[1:], *excluded, why="changes nothing without a rank")
        return
    for name in excluded:
        if source[name]:
            reason = "name the layers instead: learner.lora.target_modules"
            draft.refuse(name, source[name], reason, cure="learner.lora.target_modules")
    used, unused = (names, theirs) if source[names[0]] > 0 else (theirs, names)
    source.note_unused(draft, *unused, why="the other rank counts")
    rank, alpha, targets = (source[name] for name in used[:3])
    if used is theirs and set(targets or _MEGATRON) & _MEGATRON:
        if set(targets or _MEGATRON) != _MEGATRON:
            reason = "each is several of the model's own layers: name these with --set learner.lora.target_modules"
            draft.refuse(used[2], targets, reason, cure="learner.lora")
        targets = [ALL_LINEAR]
    origin = source.origin(*(name for name in used if source.is_set(name)))
    dropout = source[theirs[3]] if used is theirs else 0.0
    set_lora(draft, origin, rank=rank, alpha=alpha, dropout=dropout, targets=targets)
