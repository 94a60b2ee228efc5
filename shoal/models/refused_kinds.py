"""Kinds of models that pass all other checks of the services, but would be trained wrongly."""

REFUSED_KINDS = {
    "gpt_oss": (
        "vLLM 0.32 loads its experts and attention sinks in a way that a publish cannot take: generators would "
        "continue to sample with the weights of the files"
    ),
}
"""The reason of each refusal, by `model_type` in config.json."""
