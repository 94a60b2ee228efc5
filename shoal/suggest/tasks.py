"""Tasks: starting values from Unsloth's guide to GRPO, or from the guide's ranges if the guide gives no value."""

from dataclasses import dataclass

SMALL_GPU_GB = 24
"""GPU memory below which the guide halves the group and doubles the accumulation."""


@dataclass(frozen=True)
class Task:
    """Starting values for one kind of question, each with its reason."""

    group_size: int
    max_completion_tokens: int
    kl_coef: float
    learning_rate: float
    dataset: str
    reasons: dict[str, str]
    """The reason for each value, by field."""


_GUIDE = "the guide's value for this task"

TASKS = {
    "math_reasoning": Task(
        group_size=16,
        max_completion_tokens=500,
        kl_coef=0.05,
        learning_rate=1e-5,
        dataset="allenai/RLVR-GSM",
        reasons={
            "grpo.group_size": f"{_GUIDE}: hard questions need more answers before one is right",
            "sampling.max_completion_tokens": f"{_GUIDE}: room for the steps of a solution",
            "kl.coef": f"{_GUIDE}: a loose bond to the reference, which leaves room to explore",
            "learner.learning_rate": _GUIDE,
            "data.sources": "grade-school mathematics with checkable answers",
        },
    ),
    "instruction_following": Task(
        group_size=8,
        max_completion_tokens=200,
        kl_coef=0.1,
        learning_rate=5e-6,
        dataset="allenai/RLVR-IFeval",
        reasons={
            "grpo.group_size": f"{_GUIDE}: constraints are often met, so fewer answers suffice",
            "sampling.max_completion_tokens": f"{_GUIDE}: answers are short",
            "kl.coef": f"{_GUIDE}: a moderate bond, since style is easily lost",
            "learner.learning_rate": f"{_GUIDE}: slower, for the same reason",
            "data.sources": "instructions with constraints that can be checked",
        },
    ),
    "code": Task(
        group_size=8,
        max_completion_tokens=500,
        kl_coef=0.05,
        learning_rate=5e-6,
        dataset="saurabh5/rlvr_acecoder_filtered",
        reasons={
            "grpo.group_size": "within the guide's 6 to 16: each answer is executed, which costs more than reading it",
            "sampling.max_completion_tokens": "the upper end of the guide's 100 to 500: a program is long",
            "kl.coef": "as for mathematics, the guide's other task with one right result",
            "learner.learning_rate": "the lower end of the guide's range for custom tasks",
            "data.sources": "programming tasks with unit tests",
        },
    ),
}
"""Tasks by the name that `--task` takes."""
