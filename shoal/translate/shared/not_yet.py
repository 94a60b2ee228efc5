"""Features that other systems have and Shoal will have. When a feature arrives, delete its row here and in
docs/translation.md."""

NOT_YET: dict[str, str] = {
    "quantized training": "8-bit models and quantization-aware training; today a frozen model may have 4 bits",
    "vision": "images, audio and video; today only text models are trained",
    "mixture of experts": "mixture-of-experts training; today only dense models are trained",
    "FP8 rollout": "quantized engines and caches; today the engine computes in float32, bfloat16 or float16",
    "evolving rubrics": "rubrics that change during a run; today the label rubric grades by those in the data",
    "distillation": "distillation from a teacher",
    "multi-token prediction": "heads that predict several tokens",
    "PF-PPO": "weighting completions by their rewards",
}
"""Feature -> the reason in a refusal."""
