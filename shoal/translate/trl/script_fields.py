"""Fields of TRL's scripts, of its trainer and of related calls, one row each."""

from shoal.translate.shared.field import Field, composed, each, ignored, mapped, outside, played, refused
from shoal.translate.trl.fields import DTYPE, EVALUATION, HOW, REWARDS, TRANSFORMERS
from shoal.translate.trl.open_r1 import FIELDS as OPEN_R1

_LOADING = "each service loads the model in its own way"
TOOLS = ("tools", "rollout_func", "environment_factory")
"""Arguments of TRL's trainer for episodes of several turns."""

BESIDE: list[Field] = [
    composed(
        "model_name_or_path",
        "text",
        None,
        "model.path",
        aliases=["model", "model_name", "GRPOTrainer.model", "from_pretrained.pretrained_model_name_or_path"],
    ),
    composed("dataset_name", "text", None, "data.sources"),
    mapped("model_revision", "text", None, "model.revision", aliases=["from_pretrained.revision"]),
    composed("attn_implementation", "text", None, "learner.attention", aliases=["from_pretrained.attn_implementation"]),
    ignored("dtype", DTYPE, aliases=["torch_dtype", "from_pretrained.dtype", "from_pretrained.torch_dtype"]),
    *each(ignored("from_pretrained.", _LOADING), "device_map low_cpu_mem_usage token"),
    ignored("from_pretrained.use_cache", HOW),
    refused("from_pretrained.*", "any", None, "Shoal loads the model as its files define it"),
    composed(
        "train_dataset",
        "table",
        None,
        "data.sources",
        why="if a Python file loads it with load_dataset and does not change its rows",
        aliases=["GRPOTrainer.train_dataset"],
    ),
    composed("dataset_config", "text", None, "data.sources", aliases=["dataset_configs"]),
    composed("dataset_train_split", "text", "train", "data.sources"),
    composed("dataset_prompt_column", "text", None, "data.sources"),
    composed("system_prompt", "text", None, "data.sources"),
    composed("num_processes", "integer", 1, "grpo.groups_per_step launch.num_learner_ranks"),
    ignored("dataset_test_split", EVALUATION),
    mapped("chat_template", "text", None, "model.chat_template"),
    composed("wandb_project", "text", None, "tracking.wandb_project"),
    composed("wandb_entity", "text", None, "tracking.wandb_entity"),
    composed("wandb_run_group", "text", None, "tracking.wandb_group"),
    ignored("dataset_streaming", "the coordinator reads the data"),
    ignored("ignore_bias_buffers", HOW),
    ignored("vllm_device", TRANSFORMERS),
    ignored("vllm_dtype", DTYPE),
    composed(
        "reward_funcs",
        "texts",
        None,
        REWARDS,
        why="functions of trl.rewards, by name, and functions of a Python file",
        aliases=["GRPOTrainer.reward_funcs"],
    ),
    composed("reward_model_name_or_path", "text", None, "reward.model data.sources"),
    *(played(f"GRPOTrainer.{name}", "any", accepts=[None, [], ["None"]]) for name in TOOLS),
    played("gym_configs", "any", accepts=[None, []]),
    refused("GRPOTrainer.optimizers", "any", None, "Shoal uses AdamW: give optim", accepts=[None, ["None", "None"]]),
    ignored("GRPOTrainer.eval_dataset", EVALUATION),
    ignored("GRPOTrainer.reward_processing_classes", "reward.model names a model, whose own tokenizer is used"),
    outside("GRPOTrainer.callbacks", "any", None, "Shoal runs no code of the trainer's callbacks", accepts=[["None"]]),
    *OPEN_R1,
]
"""Fields of the script or the command line outside of GRPOConfig."""
