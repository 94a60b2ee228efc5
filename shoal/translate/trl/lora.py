"""TRL's LoRA: flags of its scripts, or peft's LoraConfig in a Python file."""

from typing import Any

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.field import Field, accepted, composed, each, ignored, not_yet, refused, rows
from shoal.translate.shared.setters import LORA_PARAMETERS, set_lora

_CALL = "LoraConfig"
_BITS = "BitsAndBytesConfig"
_INITIAL = "an adapter begins as by peft's default: its first matrix is random, and its second is 0"
_LINEAR = "Shoal trains only LoRA adapters on linear layers, and no other weights beside them"
_TO = "learner.lora"

LORA: list[Field] = rows(
    composed("GRPOTrainer.peft_config", "texts", None, _TO, why="a LoraConfig in the same file"),
    composed("use_peft", "flag", False, _TO),
    composed("lora_r", "integer", 16, _TO),
    composed("lora_alpha", "integer", 32, _TO),
    composed("lora_dropout", "number", 0.05, _TO),
    composed("lora_target_modules", "texts", None, _TO),
    composed("use_rslora", "flag", False, _TO),
    composed("load_in_4bit", "flag", False, _TO, aliases=[f"{_BITS}.load_in_4bit"]),
    composed("bnb_4bit_quant_type", "text", "nf4", _TO),
    composed(f"{_BITS}.bnb_4bit_quant_type", "text", "fp4", _TO),
    not_yet("load_in_8bit", "flag", False, "quantized training", aliases=[f"{_BITS}.load_in_8bit"]),
    *(
        composed(f"{call}.quantization_config", "texts", None, _TO, why=f"a {_BITS} in the same file")
        for call in ("GRPOTrainer", "from_pretrained")
    ),
    ignored(
        "bnb_4bit_quant_storage",
        "the type in which 4-bit values are packed",
        aliases=[f"{_BITS}.bnb_4bit_quant_storage"],
    ),
    ignored(
        "use_bnb_nested_quant",
        "scales of the 4-bit layers are not quantized themselves",
        aliases=[f"{_BITS}.bnb_4bit_use_double_quant"],
    ),
    ignored(f"{_BITS}.bnb_4bit_compute_dtype", "learner.compute_dtype decides it"),
    refused(f"{_BITS}.*", "any", None, "Shoal has no such option of 4-bit models"),
    refused("lora_target_parameters lora_modules_to_save use_dora", "any", None, _LINEAR),
    *each(
        refused(f"{_CALL}.", "any", None, _LINEAR),
        "modules_to_save use_dora target_parameters layers_to_transform rank_pattern alpha_pattern exclude_modules "
        "trainable_token_indices",
    ),
    *each(composed(f"{_CALL}.", "integer", 8, _TO), "r lora_alpha"),
    composed(f"{_CALL}.lora_dropout", "number", 0.0, _TO),
    composed(f"{_CALL}.target_modules", "texts", None, _TO),
    composed(f"{_CALL}.use_rslora", "flag", False, _TO),
    accepted(f"{_CALL}.bias", "any", "none", "biases stay frozen", accepts=[None]),
    accepted(f"{_CALL}.init_lora_weights", "any", True, _INITIAL, accepts=[None, "gaussian"]),
    *(ignored(name, "the task is causal language modeling") for name in ("lora_task_type", f"{_CALL}.task_type")),
    ignored(f"{_CALL}.inference_mode", "adapters are trained"),
    refused(f"{_CALL}.*", "any", None, "Shoal has no such option of LoRA"),
)


def _quantization(source: Source, draft: Draft) -> str:
    """Returns the 4-bit type of the frozen layers, or "none"."""
    flag, call = source["bnb_4bit_quant_type"], source[f"{_BITS}.bnb_4bit_quant_type"]
    for name in ("GRPOTrainer.quantization_config", "from_pretrained.quantization_config"):
        given = [text for text in source[name] or () if text != "None"]
        if given and not given[0].startswith((f"{_BITS}(", "get_quantization_config(")):
            draft.refuse(name, given, f"the file has no readable {_BITS}: set learner.lora", cure="learner.lora")
        elif given and given[0].startswith(_BITS):
            flag = call
    return str(flag) if source["load_in_4bit"] else "none"


def compose_lora(source: Source, draft: Draft) -> None:
    """Sets the adapters, if the source has any, and the type of the frozen layers."""
    named = [text for text in source["GRPOTrainer.peft_config"] or () if text not in ("None", "")]
    fields = {name: f"{_CALL}.{parameter}" for name, parameter in LORA_PARAMETERS.items()}
    flags = {"rank": "lora_r", "alpha": "lora_alpha", "dropout": "lora_dropout", "rslora": "use_rslora"}
    flags |= {"targets": "lora_target_modules"}
    # A call without arguments uses all of peft's defaults.
    is_call = any(source.is_set(name) for name in fields.values()) or f"{_CALL}()" in named
    by_flags = source["use_peft"]
    if named and not is_call and "get_peft_config" not in str(named):
        draft.refuse("GRPOTrainer.peft_config", named, f"the file has no readable {_CALL}: set {_TO}", cure=_TO)
        return
    names = fields if is_call and named else flags
    values: dict[str, Any] = {name: source[field] for name, field in names.items()}
    used = [field for field in names.values() if source.is_set(field)]
    quantization = _quantization(source, draft)
    if quantization == "none":
        source.note_unused("bnb_4bit_quant_type", why="changes nothing without load_in_4bit")
    if not (is_call and named) and not by_flags:
        source.note_unused(*(*fields.values(), *flags.values()), why="changes nothing without use_peft")
        if quantization != "none":
            draft.refuse("load_in_4bit", True, "a 4-bit model is frozen: train adapters on it, by use_peft", cure=_TO)
        return
    bits = ("load_in_4bit", "bnb_4bit_quant_type", f"{_BITS}.bnb_4bit_quant_type")
    used += [name for name in bits if source.is_set(name)]
    set_lora(draft, source.origin(*(used or ["use_peft"])), **values, quantization=quantization)
