"""Checks of a model before its weights are read."""

import copy
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from services.learner.model.adapters import inject_adapters
from services.learner.model.attention import choose_attention, register_attention
from services.learner.model.freezing import freeze
from services.learner.model.language_model import make_empty, read_config
from services.learner.model.machine_errors import raise_machine_error
from services.learner.model.mixers import find_mixers
from services.learner.model.packing import sequence_row
from services.learner.model.policy import Policy
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from shoal.models.file_names import FileNames
from shoal.models.head_sizes import check_heads
from shoal.models.linear_layers import left_out
from shoal.models.remote_code import warn_of_code
from shoal.models.text_part import auto_class, has_other_parts, keep_text_part
from shoal.models.weight_files import WeightFiles, find_weight_files

_log = logging.getLogger(__name__)
_MAX_DIFFERENCE = 1e-3
"""The largest difference in float32 between packed and unpacked log-probabilities of a model that is accepted."""
_DEPTHS = ("depth", "num_hidden_layers", "num_layers", "encoder_layers")
_SHRUNKEN = (
    "vocab_size", "vocab_size_per_layer_input",
    "intermediate_size", "intermediate_size_mlp", "moe_intermediate_size", "shared_expert_intermediate_size",
    "expert_ffn_hidden_size", "ffn_hidden_size",
)  # fmt: skip
_SHRUNKEN_SIZE = 64
"""Vocabulary sizes and MLP widths (`_SHRUNKEN`) of the small model on which packing is checked."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_OF_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
_EXPERT_GROUPS = ("n_group", "num_expert_group")


def check_model(folder: Path, config: LearnerConfig, *, trust_remote_code: bool = False) -> None:
    """Raises `InvalidArgument` when the folder's model cannot be trained with these settings on this machine."""
    warn_of_code(folder, trust_remote_code=trust_remote_code)
    model = read_config(folder, trust_remote_code=trust_remote_code)
    if has_other_parts(model):
        _check_files_have_other_parts(folder, model, trust_remote_code=trust_remote_code)
    attention = choose_attention(config, model)
    if config.sequence_parallel_size > 1:
        check_heads(model.get_text_config().num_attention_heads, config.sequence_parallel_size)
        _check_no_mixers(model, trust_remote_code=trust_remote_code)
    _check_packing(model, "sdpa" if attention == "sdpa" else "eager", trust_remote_code=trust_remote_code)
    if config.freeze or config.lora.is_on:
        _check_trained_part(model, config, trust_remote_code=trust_remote_code)


def _check_trained_part(model: Any, config: LearnerConfig, *, trust_remote_code: bool) -> None:
    """Checks the entries of `learner.freeze` or the layers that get adapters; warns of experts without adapters."""
    with torch.device("meta"):
        lm = make_empty(model, torch.float32, trust_remote_code=trust_remote_code)
        if config.freeze:
            freeze(lm, config.freeze)
        if config.lora.is_on:
            note = left_out(lm, config.lora.target_modules)
            inject_adapters(lm, config.lora)
            if note:
                _log.warning(note)


def _check_files_have_other_parts(folder: Path, config: Any, *, trust_remote_code: bool) -> None:
    """Checks that an export can add the parts of the model that are not trained."""
    with torch.device("meta"):
        lm = make_empty(config, torch.float32, trust_remote_code=trust_remote_code)
    files = WeightFiles(find_weight_files(folder))
    names = FileNames(lm, files.names or None).shapes({name: tuple(p.shape) for name, p in lm.named_parameters()})
    if (missing := next((name for name in names if name not in files), None)) is not None:
        raise InvalidArgument(
            f"model.path: only the text part of a {type(lm).__name__} is trained, and an export copies the other parts "
            f"from the model's files, but these safetensors files have no tensor {missing}; save the model with "
            "transformers' save_pretrained"
        )


def _check_no_mixers(config: Any, *, trust_remote_code: bool) -> None:
    with torch.device("meta"):
        lm = make_empty(shrunken(config), torch.float32, trust_remote_code=trust_remote_code)
    if mixers := find_mixers(lm):
        raise InvalidArgument(
            f"learner.sequence_parallel_size: {type(lm).__name__} has recurrent layers ({type(mixers[0]).__name__}), "
            "which need whole sequences on each rank; set the field to 1"
        )


def _check_packing(config: Any, attention: str, *, trust_remote_code: bool) -> None:
    """Checks on a few tokens, in float32, that the model gives the same results packed as on single sequences.

    The check refuses models that packing would silently break: layers of an unknown kind that carry state past a
    sequence's end, attention that bypasses transformers' interface, logits that are changed in an unknown way after the
    output layer. The check uses a small random model of the same kind, since the whole model may not fit into a rank's
    memory.
    """
    name = config.model_type
    try:
        lm = _small_model(config, trust_remote_code=trust_remote_code)
        name = type(lm).__name__
        alone, packed = _logprobs_alone_and_packed(lm, attention)
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise_machine_error(error)
        raise InvalidArgument(f"model.path: {name} fails on packed rows, so use another model: {error}") from error
    difference = float((packed - alone).abs().max())
    if not difference <= _MAX_DIFFERENCE:
        raise InvalidArgument(
            f"model.path: {name} cannot be trained on packed rows, because sequences packed into one row get "
            f"log-probabilities that differ by {difference:.3g} from those of each sequence alone; use another model"
        )


def _logprobs_alone_and_packed(lm: Any, attention: str) -> tuple[torch.Tensor, torch.Tensor]:
    sequences = [np.arange(1, 8, dtype=np.int32), np.arange(5, 9, dtype=np.int32)]
    policy = Policy(lm, compute_dtype=torch.float32, logits_chunk_tokens=1024)
    alone = []
    with torch.no_grad():
        for sequence in sequences:
            tokens = torch.from_numpy(sequence).long()
            logits = lm(input_ids=tokens[None], use_cache=False).logits[0]
            alone.append(torch.log_softmax(logits[:-1], -1).gather(-1, tokens[1:, None]).squeeze(-1))
        lm.set_attn_implementation(register_attention(attention))
        packed, _ = policy(sequence_row(sequences), 1.0)
    return torch.cat(alone), packed


def _small_model(config: Any, *, trust_remote_code: bool) -> Any:
    small = shrunken(config)
    with torch.random.fork_rng(devices=[]):
        # All ranks must come to the same decision.
        torch.manual_seed(0)
        lm = auto_class(small).from_config(
            small, dtype=torch.float32, attn_implementation="eager", trust_remote_code=trust_remote_code
        )
        for parameter in lm.parameters():
            if parameter.ndim >= 2:
                # A fresh model's layers add nothing to their input, which would hide differences.
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return keep_text_part(lm).eval()


def shrunken(config: Any) -> Any:
    """Returns a configuration of the same kind with one layer of each kind, at least two, a small vocabulary
    and few experts.

    Layers are of one kind if they have equal values in every list of the configuration that has a value for each layer.
    A list of the numbers of all layers (such as Llama 4's `moe_layers`) is not such a list.
    """
    small = copy.deepcopy(config)
    text = small.get_text_config()
    num_layers = text.num_hidden_layers
    lists = {name: value for name, value in vars(text).items() if isinstance(value, list | tuple)}
    numbers = list(range(num_layers))
    per_layer = {name: value for name, value in lists.items() if len(value) == num_layers and list(value) != numbers}
    kinds: dict[str, int] = {}
    for layer in range(num_layers):
        kinds.setdefault(repr([value[layer] for value in per_layer.values()]), layer)
    kept = sorted({*kinds.values(), *range(min(2, num_layers))})
    if getattr(text, "num_kv_shared_layers", None):
        # Layers take the keys of others, so the kept layers must have the same neighbors.
        kept = list(range(num_layers))
    text.num_hidden_layers = len(kept)
    for name, value in per_layer.items():
        setattr(text, name, [value[layer] for layer in kept])
    for name in _SHRUNKEN:
        if isinstance(size := getattr(text, name, None), int):
            setattr(text, name, min(size, _SHRUNKEN_SIZE))
    _keep_few_experts(text)
    if getattr(text, "pad_token_id", None) is not None:
        text.pad_token_id = 0
    for name in small.sub_configs:
        if (tower := getattr(small, name)) is not None and tower is not text:
            _shrink_tower(tower)
    return small


def _keep_few_experts(text: Any) -> None:
    """Leaves one expert more than a token has. If the router chooses groups first, they stay, with two experts each at
    least, since routers score a group by its best two experts."""

    def first_of(names: tuple[str, ...]) -> int | None:
        return next((value for name in names if isinstance(value := getattr(text, name, None), int)), None)

    num_chosen, num_groups = first_of(_EXPERTS_OF_A_TOKEN), first_of(_EXPERT_GROUPS) or 1
    if num_chosen is None:
        return
    num_chosen_groups = first_of(("topk_group",)) or num_groups
    kept = num_groups * max(2, math.ceil((num_chosen + 1) / num_chosen_groups))
    for name in _EXPERTS:
        if isinstance(value := getattr(text, name, None), int):
            setattr(text, name, min(value, kept))


def _shrink_tower(config: Any) -> None:
    """Leaves one layer of the tower for another medium, which computes nothing here."""
    num_layers = {getattr(config, name, None) for name in _DEPTHS} - {None}
    for name, value in list(vars(config).items()):
        if name in _DEPTHS:
            setattr(config, name, 1)
        elif isinstance(value, list | tuple) and len(value) in num_layers:
            setattr(config, name, value[:1])
        elif name == "deepstack_visual_indexes":
            setattr(config, name, [0])
