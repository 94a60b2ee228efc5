"""Seeds of schedules that once failed. Each stays, with what it found."""

FAILING_SEEDS: dict[int, str] = {
    150: "a checkpoint between a step and its publish, then a restore: the step was in no metrics",
    4: "a transfer of weights that was canceled while it waited for READY: it left a task",
    250: "a change of run.num_steps that waited when the coordinator was killed: run.json kept the former number",
}
