"""The text part of a model that can also read other media: images, video or sound.

Only the text part is trained and sampled from. The other parts, such as a vision tower, are left out of a model, so
they take no memory, are not published, and have no place in a checkpoint. An export copies their tensors from the
model's files.
"""

from typing import Any


def auto_class(config: Any) -> Any:
    """Returns the class of transformers that makes the language model of a configuration.

    A configuration of a model that can read images makes the whole model, whose parameters have the names in the files.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    is_reader = type(config) in AutoModelForImageTextToText._model_mapping and not hasattr(config, "auto_map")
    return AutoModelForImageTextToText if is_reader else AutoModelForCausalLM


def has_other_parts(config: Any) -> bool:
    """Returns whether a configuration of transformers describes more than a text part."""
    return config.get_text_config() is not config


def keep_text_part(lm: Any) -> Any:
    """Removes all modules with parameters outside the decoder and the output layer. Returns the model."""
    decoder = lm.get_decoder()
    if has_other_parts(lm.config) and decoder is not lm:
        _remove_all_but(lm, {decoder, lm.get_output_embeddings()})
    return lm


def _remove_all_but(module: Any, kept: set[Any]) -> None:
    for name in [name for name, _ in module.named_parameters(recurse=False)]:
        module.register_parameter(name, None)
    for name, child in list(module.named_children()):
        if child in kept:
            continue
        if not kept.isdisjoint(child.modules()):
            _remove_all_but(child, kept)
        elif next(child.parameters(), None) is not None:
            setattr(module, name, None)
