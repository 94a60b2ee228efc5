"""The `[learner.lora]` table: low-rank adapters on a frozen model."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.section import Fixed, Section

Quantization = Literal["none", "nf4", "fp4"]
ALL_LINEAR = "all-linear"
_IN_CHECKPOINT = Fixed("the checkpoint holds adapters of this form")
_NAMES_ELSEWHERE = {
    "r": "rank",
    "lora_r": "rank",
    "lora_rank": "rank",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "lora_target_modules": "target_modules",
    "use_rslora": "rslora",
    "load_in_4bit": 'quantization = "nf4"',
}
"""Names of options in peft, TRL, verl and Unsloth, and the names of the same options in this table."""
_UNAVAILABLE = {
    "use_dora": "DoRA",
    "modules_to_save": "training other modules beside the adapters",
    "bias": "training biases beside the adapters",
    "lora_bias": "a bias in the adapters",
    "init_lora_weights": "another initialization than LoRA's own (A random, B zero)",
    "loftq_config": "an initialization by LoftQ",
}
"""Options of peft that change what an adapter is."""


class LoraConfig(Section):
    rank: Annotated[int, _IN_CHECKPOINT] = Field(default=0, ge=0)
    """Rank of the adapters (LoRA, arXiv:2106.09685), which are trained instead of the model. With 0 the model is
    trained. The model stays frozen in `learner.compute_dtype`, and the adapters are float32. Adapters need a learning
    rate about 10 times as high as training of the whole model."""
    alpha: Annotated[int, _IN_CHECKPOINT] = Field(default=32, ge=1)
    """Scale of the adapters: the product of the two adapter matrices is multiplied by alpha / rank."""
    rslora: Annotated[bool, _IN_CHECKPOINT] = False
    """Multiply the adapters' product by alpha / sqrt(rank) instead of alpha / rank (rsLoRA, arXiv:2312.03732)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that is zeroed in the forward passes with a gradient. A share above 0 adds noise to
    the log-probabilities of a train step, and to the measured gap between learner and engine."""
    target_modules: Annotated[list[str], _IN_CHECKPOINT] = Field(default=[ALL_LINEAR], min_length=1)
    """Names, or ends of names, of the linear layers that get an adapter, for example `["q_proj", "v_proj"]`.
    `["all-linear"]` is every linear layer except the output layer and the output projections of Mamba layers
    (Falcon-H1, Granite 4, Nemotron-H, Bamba), which cannot have an adapter."""
    quantization: Annotated[Quantization, _IN_CHECKPOINT] = "none"
    """Type in which bitsandbytes stores the frozen linear layers (QLoRA, arXiv:2305.14314): a 4-bit type, or none.
    Generators sample with the model's dequantized weights plus the adapters."""

    @model_validator(mode="before")
    @classmethod
    def _explain_options_of_others(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name in _NAMES_ELSEWHERE:
                raise ValueError(f"unknown key {name}; use {_NAMES_ELSEWHERE[name]} instead")
            if name in _UNAVAILABLE:
                raise ValueError(f"unknown key {name}; {_UNAVAILABLE[name]} is not available: remove the key")
        return values

    @field_validator("target_modules")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        if ALL_LINEAR in names and len(names) > 1:
            raise ValueError(f'"{ALL_LINEAR}" means every linear layer: name it alone, or name only the layers')
        if "lm_head" in names:
            raise ValueError(
                "lm_head cannot have an adapter: the learner computes log-probabilities from the output layer's own "
                "weight; remove it"
            )
        if "" in names:
            raise ValueError("a name must not be empty")
        return names

    @model_validator(mode="after")
    def _settings_have_adapters(self) -> Self:
        fields = type(self).model_fields.items()
        given = [name for name, field in fields if getattr(self, name) != field.default]
        if given and not self.is_on:
            raise ValueError(
                f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect, because rank 0 trains no "
                "adapters: set rank, for example to 16"
            )
        return self

    @property
    def is_on(self) -> bool:
        """Whether adapters are trained instead of the model."""
        return self.rank > 0
