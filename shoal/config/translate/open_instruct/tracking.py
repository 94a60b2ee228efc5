"""open-instruct's flags for tracking, and for sharing one GPU."""

from shoal.config.translate.fields import Field, ignored, not_yet

TRACKING: list[Field] = [
    ignored("with_tracking", "every run writes metrics.jsonl"),
    ignored("wandb_project", "every run writes metrics.jsonl", aliases=["wandb_project_name"]),
    ignored("wandb_entity", "every run writes metrics.jsonl"),
    ignored("wandb_group_name", "every run writes metrics.jsonl"),
]

PLACEMENT: list[Field] = [
    not_yet("single_gpu_mode", "flag", False, "one GPU for all"),
]
