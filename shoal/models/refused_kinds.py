"""Kinds of models that pass every check of the services and are trained wrongly all the same."""

REFUSED_KINDS = {
    "gpt_oss": (
        "vLLM 0.32 loads its experts and attention sinks in a way that a publish cannot take: generators would go on "
        "sampling with the weights of the files"
    ),
}
"""By `model_type` in config.json, why it is refused."""
