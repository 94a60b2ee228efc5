"""The policy: a causal language model whose forward takes a packed row and returns log-probabilities."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from services.learner.model.attention import choose_attention, register_attention
from services.learner.model.logprobs import TokenScorer
from services.learner.model.packing import PackedRow, sequence_row
from services.learner.model.sequence_parallel import SequenceGroup, check_heads, gather_scored, share_of
from shoal.config.learner import LearnerConfig
from shoal.errors import InvalidArgument

_MAX_DIFFERENCE = 1e-3
"""Largest difference in float32 between packed and unpacked log-probabilities; above it the model is refused."""


class Policy(nn.Module):
    """A causal language model that scores the completion tokens of packed rows."""

    def __init__(self, lm: Any, *, compute_dtype: torch.dtype, logits_chunk_tokens: int) -> None:
        super().__init__()
        self.lm = lm
        self.sequence_group: SequenceGroup | None = None
        self.scorer = TokenScorer(
            lm.get_output_embeddings(),
            chunk_tokens=logits_chunk_tokens,
            logit_softcap=getattr(lm.config, "final_logit_softcapping", None),
        )
        self.compute_dtype = compute_dtype
        # The hidden states are float32 whatever the type of the weights: rounding them at every layer would add up.
        lm.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.float())

    def forward(self, row: PackedRow, temperature: float) -> tuple[Tensor, Tensor]:
        """Computes log-probabilities of the scored tokens at the temperature, [C] with gradient, and entropies, [C].

        Both are float32. With a `sequence_group` all its ranks pass the same row, each computes a share of it, and all
        get the whole result.
        """
        group = self.sequence_group
        if group is None:
            return self._score(row, temperature)
        share = share_of(row, group)
        logprobs_C, entropy_C = gather_scored(self._score(share.row, temperature), share, group)
        return logprobs_C, entropy_C

    def _score(self, row: PackedRow, temperature: float) -> tuple[Tensor, Tensor]:
        with torch.autocast(row.token_ids_R.device.type, torch.bfloat16, enabled=self.compute_dtype == torch.bfloat16):
            hidden_1RE = self.lm.base_model(
                input_ids=row.token_ids_R[None],
                position_ids=row.positions_R[None],
                use_cache=False,
                layout=row.layout,
            ).last_hidden_state
            scored: tuple[Tensor, Tensor] = self.scorer(
                hidden_1RE[0].index_select(0, row.predicting_C), row.targets_C, temperature
            )
        return scored


def load_policy(folder: Path, config: LearnerConfig, *, sequence_group: SequenceGroup | None = None) -> Policy:
    """Loads the model to train into host memory, in float32.

    Raises `InvalidArgument` when the folder does not contain a causal language model that can be packed.
    """
    lm = _load_lm(folder, torch.float32)
    policy = Policy(lm, compute_dtype=torch.float32, logits_chunk_tokens=config.logits_chunk_tokens)
    attention = choose_attention(config, lm.config)
    _check_packing(policy, "sdpa" if attention == "sdpa" else "eager")
    lm.set_attn_implementation(register_attention(attention))
    policy.compute_dtype = getattr(torch, config.compute_dtype)
    policy.sequence_group = sequence_group
    if sequence_group is not None:
        check_heads(lm.config.get_text_config().num_attention_heads, sequence_group.size)
    if config.gradient_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def load_reference(
    folder: Path, config: LearnerConfig, *, is_fixed: bool = True, sequence_group: SequenceGroup | None = None
) -> Policy:
    """Loads the reference, a copy of the model that is not trained, into host memory.

    The weights of a fixed reference have the type that it computes in. Where the model's files have that type too, its
    log-probabilities equal the untrained policy's, and the KL starts at exactly 0. The weights of a reference that
    follows the policy are float32, like the policy's: small steps would vanish in bfloat16. Raises the errors of
    `load_policy`.
    """
    compute_dtype = getattr(torch, config.compute_dtype)
    lm = _load_lm(folder, compute_dtype if is_fixed else torch.float32)
    lm.set_attn_implementation(register_attention(choose_attention(config, lm.config)))
    reference = Policy(lm, compute_dtype=compute_dtype, logits_chunk_tokens=config.logits_chunk_tokens)
    reference.sequence_group = sequence_group
    reference.requires_grad_(False).eval()
    return reference


def _load_lm(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        lm = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InvalidArgument(f"model.path: {folder} cannot be loaded as a causal language model: {error}") from error
    # A policy must be a function of its weights alone: with dropout the ratio to the behavior policy would be noise.
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return lm


def _check_packing(policy: Policy, attention: str) -> None:
    """Checks on a few tokens, in float32, that the model gives the same results packed as on single sequences.

    This refuses models that packing would silently break: layers that carry state past a sequence's end, attention
    that bypasses transformers' interface, logits that are scaled after the output layer. Afterwards the model uses
    packed attention. Raises `InvalidArgument`.
    """
    lm = policy.lm
    sequences = [np.arange(1, 8, dtype=np.int32), np.arange(5, 9, dtype=np.int32)]
    alone = []
    with torch.no_grad():
        for sequence in sequences:
            tokens = torch.from_numpy(sequence).long()
            logits = lm(input_ids=tokens[None], use_cache=False).logits[0]
            alone.append(torch.log_softmax(logits[:-1], -1).gather(-1, tokens[1:, None]).squeeze(-1))
        try:
            lm.set_attn_implementation(register_attention(attention))
            packed, _ = policy(sequence_row(sequences), 1.0)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgument(
                f"model.path: {type(lm).__name__} cannot be trained on packed rows: {error}"
            ) from error
    difference = float((packed - torch.cat(alone)).abs().max())
    if not difference <= _MAX_DIFFERENCE:
        raise InvalidArgument(
            f"model.path: {type(lm).__name__} cannot be trained on packed rows: its log-probabilities differ by "
            f"{difference:.3g} from those of the sequences alone"
        )
