"""`python load_models.py`: loads models with whatever transformers this Python has, and says what they compute.

Reads {name: {"folder": ..., "token_ids": [...], "text": ..., "messages": [...]}} from stdin, and writes for each name
{"version": ..., "logits": [[...]], "text_ids": [...], "chat_ids": [...], "missing": [...]}. For a kind of model that
this transformers lacks, the answer is {"version": ..., "unknown": ...}; after a failure it is {"error": ...}. Without
"text" the tokenizer is not loaded. Where peft is installed and the folder has an adapter, "adapter_logits" are those of
the model "base" with it. Imports nothing of this project.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


def load(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    config = json.loads((folder / "config.json").read_text())
    for kind in (config["model_type"], config.get("text_config", config)["model_type"]):
        if kind not in CONFIG_MAPPING:
            return {"unknown": kind, "version": transformers.__version__}
    reads_images = type(AutoConfig.from_pretrained(folder)) in AutoModelForImageTextToText._model_mapping
    auto_class = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
    lm, report = auto_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    answer = {
        "version": transformers.__version__,
        "logits": _logits(lm, request["token_ids"]),
        "missing": sorted(report["missing_keys"]),
    }
    if "text" in request:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        answer |= {
            "text_ids": tokenizer(request["text"])["input_ids"],
            "chat_ids": tokenizer.apply_chat_template(
                request["messages"], add_generation_prompt=True, return_dict=False
            ),
            "end_ids": lm.generation_config.eos_token_id,
        }
    if (folder / "adapter").is_dir() and importlib.util.find_spec("peft"):
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(request["base"], dtype=torch.float32)
        adapted = PeftModel.from_pretrained(base, folder / "adapter")
        answer["adapter_logits"] = _logits(adapted, request["token_ids"])
    return answer


def _logits(lm: Any, token_ids: list[int]) -> list[list[float]]:
    with torch.no_grad():
        values: list[list[float]] = lm(torch.tensor(token_ids)[None]).logits[0].tolist()
    return values


def main() -> None:
    answers = {}
    for name, request in json.load(sys.stdin).items():
        try:
            answers[name] = load(request)
        except Exception as error:
            answers[name] = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
