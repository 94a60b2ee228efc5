"""The files next to an exported model's weights: configuration, generation configuration, tokenizer and code.

These files are copies of the source's files, with changes only to values that training changed. A file that this
version of transformers wrote anew would lack settings that earlier versions expect, so they would use defaults.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.chat_templates import template_text
from shoal.config.tables.model import ModelConfig
from shoal.errors import InvalidArgument
from shoal.models.model_folder import load_tokenizer, read_json, resolve_model, stop_token_ids, tokenizer_folder

_CONFIG = "config.json"
_GENERATION_CONFIG = "generation_config.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_PROCESSOR_TEMPLATE = "chat_template.json"
_NAMED_TEMPLATES = "additional_chat_templates"
_TOKENIZER_FILES = (
    "tokenizer.json", _TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "vocab.txt", "*.model", "*.model.v*", "*.tiktoken", "tekken.json", _TEMPLATE, _PROCESSOR_TEMPLATE,
)  # fmt: skip
"""All names of files that a tokenizer of transformers may have."""
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Files of models that read more than text. Engines require them even if only text is sent."""
_CODE = "*.py"
_CODE_MAP = "auto_map"
_TIES = "tie_word_embeddings"
_DTYPES = ("dtype", "torch_dtype")
"""The names of the setting for the weights' type, in transformers 5 and in earlier versions."""
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def write_companions(folder: Path, lm: Any, model: ModelConfig, dtype: str) -> None:
    """Writes configuration, generation configuration, tokenizer and trusted code next to the weights of a model.

    `dtype` is the type of the weights, to be stated in the configuration. Raises the errors of `load_tokenizer`, and
    `InvalidArgument` if code files of the model and of the tokenizer have the same name but differ.
    """
    source = resolve_model(model.path, model.revision, weights=False)
    tokenizer = load_tokenizer(model)
    stops = stop_token_ids(model, tokenizer)
    tokenizer_source = source if model.tokenizer is None else tokenizer_folder(model.tokenizer)
    _write_config(folder, source, dtype, is_untied=_is_untied(lm))
    _write_generation_config(folder, source, stops)
    _copy(tokenizer_source, folder, _TOKENIZER_FILES)
    _copy(source, folder, _PROCESSOR_FILES)
    if model.chat_template is None:
        if (tokenizer_source / _NAMED_TEMPLATES).is_dir():
            (folder / _NAMED_TEMPLATES).mkdir()
            _copy(tokenizer_source / _NAMED_TEMPLATES, folder / _NAMED_TEMPLATES, ("*.jinja",))
    else:
        _set_template(folder, template_text(model.chat_template))
    if model.trust_remote_code:
        _copy_code(source, tokenizer_source, folder)
    else:
        # Training used the classes of transformers, so code that is not trusted stays out of the export.
        for name in (_CONFIG, _TOKENIZER_CONFIG):
            _change(folder / name, {_CODE_MAP: None})


def _is_untied(lm: Any) -> bool:
    """Whether the output layer has its own weights, although the configuration ties this layer to the embedding.

    transformers trains two weights if the source's files have different values for them.
    """
    head, embedding = lm.get_output_embeddings(), lm.get_input_embeddings()
    return bool(getattr(lm.config, _TIES, False)) and head.weight is not embedding.weight


def _write_config(folder: Path, source: Path, dtype: str, *, is_untied: bool) -> None:
    _copy(source, folder, (_CONFIG,))
    config = read_json(source / _CONFIG)
    changes = _config_changes(config, dtype, is_untied=is_untied)
    if isinstance(part := config.get("text_config"), dict):
        changes["text_config"] = part | _config_changes(part, dtype, is_untied=is_untied and _TIES in part)
    _change(folder / _CONFIG, changes)


def _config_changes(config: dict[str, Any], dtype: str, *, is_untied: bool) -> dict[str, Any]:
    types = {name: dtype for name in _DTYPES if name in config}
    return types | ({_TIES: False} if is_untied else {})


def _write_generation_config(folder: Path, source: Path, stops: Sequence[int]) -> None:
    """Writes the source's file, with an addition: the tokens that end the run's completions also end generation."""
    path = folder / _GENERATION_CONFIG
    values = read_json(source / _GENERATION_CONFIG, optional=True)
    if values:
        _copy(source, folder, (_GENERATION_CONFIG,))
    else:
        config = read_json(source / _CONFIG)
        values = {name: config[name] for name in _TOKENS if config.get(name) is not None}
        _write_json(path, values)
    given = values.get("eos_token_id")
    ends = given if isinstance(given, list) else [] if given is None else [given]
    if missing := [token for token in stops if token not in ends]:
        _change(path, {"eos_token_id": [*ends, *missing]})


def _set_template(folder: Path, template: str) -> None:
    if (folder / _TEMPLATE).is_file():
        (folder / _TEMPLATE).write_text(template, encoding="utf-8")
    if (folder / _PROCESSOR_TEMPLATE).is_file():
        _change(folder / _PROCESSOR_TEMPLATE, {"chat_template": template})
    values = read_json(folder / _TOKENIZER_CONFIG, optional=True)
    if "chat_template" in values or not (folder / _TEMPLATE).is_file():
        _write_json(folder / _TOKENIZER_CONFIG, {**values, "chat_template": template})


def _copy_code(source: Path, tokenizer_source: Path, folder: Path) -> None:
    _copy(source, folder, (_CODE,))
    for file in tokenizer_source.glob(_CODE):
        own = folder / file.name
        if own.is_file() and own.read_bytes() != file.read_bytes():
            raise InvalidArgument(
                f"model.tokenizer: {file} and the model's own file of that name differ, but an export can contain only "
                "one file of this name; rename one of the files, and change its name in auto_map too"
            )
        shutil.copyfile(file, own)


def _copy(source: Path, folder: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def _change(path: Path, changes: dict[str, Any]) -> None:
    """Changes values of a JSON file; None removes a value. A file that already has these values stays as it is."""
    before = read_json(path, optional=True)
    after = {name: value for name, value in (before | changes).items() if value is not None or name not in changes}
    if after != before:
        _write_json(path, after)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
