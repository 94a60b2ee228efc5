"""open-instruct's flags for tracking, and for sharing one GPU."""

from shoal.translate.shared.field import Field, composed, mapped

TRACKING: list[Field] = [
    mapped("with_tracking", "flag", False, "tracking.wandb", lambda on: "online" if on else "disabled"),
    composed(
        "wandb_project", "text", "open_instruct_internal", "tracking.wandb_project", aliases=["wandb_project_name"]
    ),
    composed("wandb_entity", "text", None, "tracking.wandb_entity"),
    composed("wandb_group_name", "text", None, "tracking.wandb_group"),
]

PLACEMENT: list[Field] = [
    mapped("single_gpu_mode", "flag", False, "launch.single_gpu"),
]
