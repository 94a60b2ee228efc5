"""The policy: a causal language model whose forward takes a packed row and returns log-probabilities."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.learner.model.adapters import add_adapters
from services.learner.model.attention import choose_attention, register_attention
from services.learner.model.freezing import freeze
from services.learner.model.fused_modules import fuse_modules
from services.learner.model.gpu_kernels import can_run_kernels
from services.learner.model.language_model import load_whole
from services.learner.model.logprobs import TokenScorer, logit_scale
from services.learner.model.mixers import RowLayout, pack_mixers
from services.learner.model.packing import PackedRow
from services.learner.model.sequence_parallel import SequenceGroup, gather_scored, share_of
from services.learner.model.trained_products import TrainedProducts, compute_products
from services.learner.model.weights import adapted_layers
from shoal.config.tables.learner import LearnerConfig

_log = logging.getLogger(__name__)
_ROW_MULTIPLE = 64
"""For a head of 100,278 tokens cuBLAS has slow kernels alone: they took a third of a step of OLMo 3 on an H200."""
_UNUSED_OUTPUTS = ("output_router_logits", "output_hidden_states")
"""What a model's config.json can make every layer keep in each pass."""
LoadModel = Callable[[Path, torch.dtype], Any]
"""Loads the language model in a folder, with weights of a given type. Raises `InvalidArgument`."""


class Policy(nn.Module):
    """A causal language model that scores the completion tokens of packed rows."""

    def __init__(
        self,
        lm: Any,
        *,
        compute_dtype: torch.dtype,
        logits_chunk_tokens: int,
        products: TrainedProducts | None = None,
    ) -> None:
        """`products` computes the model's linear layers and experts instead of torch."""
        super().__init__()
        self.lm = lm
        self.products = products
        compute_products(lm, products)
        self.sequence_group: SequenceGroup | None = None
        text = lm.config.get_text_config()
        for name in _UNUSED_OUTPUTS:
            if getattr(text, name, False):
                setattr(text, name, False)
        self.scorer = TokenScorer(
            lm.get_output_embeddings(),
            chunk_tokens=logits_chunk_tokens,
            logit_scale=logit_scale(text),
            logit_softcap=getattr(text, "final_logit_softcapping", None),
            products=products,
        )
        self._row = RowLayout()
        pack_mixers(lm, self._row)
        self.compute_dtype = compute_dtype
        self._dropouts = [layer.lora_dropout for _, layer in adapted_layers(lm)]
        # The hidden states are float32 whatever the type of the weights: rounding them at every layer would add up.
        lm.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.float())

    def forward(self, row: PackedRow, temperature: float) -> tuple[Tensor, Tensor]:
        """Computes log-probabilities of the scored tokens at the temperature, [C] with gradient, and entropies, [C].

        Log-probabilities and entropies are float32. With a `sequence_group` all ranks of the group pass the same row.
        Each rank computes a share of the row, and all ranks get the whole result.
        """
        for dropout in self._dropouts:
            # No dropout without gradient: the engine samples without it.
            dropout.train(torch.is_grad_enabled())
        group = self.sequence_group
        if group is None:
            return self._score(row, temperature)
        share = share_of(row, group)
        logprobs_C, entropy_C = gather_scored(self._score(share.row, temperature), share, group)
        return logprobs_C, entropy_C

    def _score(self, row: PackedRow, temperature: float) -> tuple[Tensor, Tensor]:
        self._row.layout = row.layout
        with torch.autocast(row.token_ids_R.device.type, torch.bfloat16, enabled=self.compute_dtype == torch.bfloat16):
            hidden_1RE = self.lm.base_model(
                input_ids=row.token_ids_R[None],
                position_ids=row.positions_R[None],
                use_cache=False,
                layout=row.layout,
            ).last_hidden_state
            scored: tuple[Tensor, Tensor] = self.scorer(
                hidden_1RE[0].index_select(0, row.predicting_C), row.targets_C, temperature, row.support_CK
            )
        return scored


def load_policy(
    folder: Path,
    config: LearnerConfig,
    *,
    seed: int = 0,
    load: LoadModel = load_whole,
    sequence_group: SequenceGroup | None = None,
) -> Policy:
    """Loads the policy with the model of `load_trained`. Raises the errors of `load_trained`.

    Call `model_check.check_model` first.
    """
    lm = load_trained(folder, config, seed=seed, load=load)
    # At stage 3 DeepSpeed gathers weights in bfloat16 for each layer.
    products = None
    if config.zero_stage != 3 and config.compute_dtype == "bfloat16":
        products = TrainedProducts(row_multiple=_ROW_MULTIPLE if torch.cuda.is_available() else 1)
    policy = _make_policy(lm, config, sequence_group, products)
    if config.gradient_checkpointing:
        policy.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def load_trained(folder: Path, config: LearnerConfig, *, seed: int, load: LoadModel) -> Any:
    """Loads the model to train, in float32. A model that gets adapters is frozen and in the compute type instead.

    `seed` determines the adapters' initial values. Raises the errors of `load`, `add_adapters` and `freeze`.
    """
    lm = load(folder, getattr(torch, config.compute_dtype) if config.lora.is_on else torch.float32)
    if config.lora.is_on:
        add_adapters(lm, config.lora, seed=seed)
    if config.freeze:
        freeze(lm, config.freeze)
    return lm


def load_reference(
    folder: Path,
    config: LearnerConfig,
    *,
    is_fixed: bool = True,
    load: LoadModel = load_whole,
    sequence_group: SequenceGroup | None = None,
) -> Policy:
    """Loads the reference, a copy of the model that is not trained. Raises the errors of `load`.

    The weights of a fixed reference have the type `learner.compute_dtype`. If the model's files also have this type,
    the reference's log-probabilities equal the untrained policy's, and the KL starts at exactly 0. The weights of a
    reference that follows the policy are float32, since small steps would vanish in bfloat16.
    """
    dtype = getattr(torch, config.compute_dtype) if is_fixed else torch.float32
    reference = _make_policy(load(folder, dtype), config, sequence_group)
    reference.requires_grad_(False).eval()
    return reference


def _make_policy(
    lm: Any, config: LearnerConfig, sequence_group: SequenceGroup | None, products: TrainedProducts | None = None
) -> Policy:
    lm.set_attn_implementation(register_attention(choose_attention(config, lm.config)))
    if torch.cuda.is_available() and can_run_kernels(torch.device("cuda")):
        _log.info("modules have kernels of their own", extra={"modules": fuse_modules(lm)})
    dtype = getattr(torch, config.compute_dtype)
    bytes_per_token = dtype.itemsize * lm.get_output_embeddings().out_features
    chunk_tokens = config.chunk_tokens(bytes_per_token, on_cpu=not torch.cuda.is_available())
    policy = Policy(lm, compute_dtype=dtype, logits_chunk_tokens=chunk_tokens, products=products)
    policy.sequence_group = sequence_group
    return policy
