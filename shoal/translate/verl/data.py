"""verl's data files, for training and for evaluation."""

from os.path import expanduser

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.verl.names import ROLLOUT, TRUTH


def compose_data(source: Source, draft: Draft) -> None:
    """Sets the sources for training and for evaluation, and how evaluation samples."""
    columns = {"messages_column": source["data.prompt_key"], "verifier_column": source["data.reward_fn_key"]}
    columns["ground_truth_column"] = TRUTH
    for name, ours in (("data.train_files", "data.sources"), ("data.val_files", "evaluation.sources")):
        if source[name]:
            tables = [
                ({"path": item} if item.endswith((".jsonl", ".parquet")) else {"dataset": item}) | columns
                for item in (expanduser(text.strip("[]'\" ")) for text in source[name])
                if item
            ]
            keys = [key for key in ("data.prompt_key", "data.reward_fn_key") if source.is_set(key)]
            draft.set(ours, tables, source.origin(name, *keys))
    often = "rollout.test_freq" if source.is_set("rollout.test_freq") else "trainer.test_freq"
    test, before = source[often], source["trainer.val_before_train"]
    names = ("n", "temperature", "top_p", "top_k")
    samples, temperature, top_p, top_k = (source[f"{ROLLOUT}.val_kwargs.{name}"] for name in names)
    most, shown = source["data.val_max_samples"], source["trainer.log_val_generations"]
    if not source["data.val_files"]:
        how = (f"{ROLLOUT}.val_kwargs.{name}" for name in names)
        when = (often, "trainer.val_before_train", "data.val_max_samples", "trainer.log_val_generations")
        source.note_unused(draft, *when, *how, why="changes nothing without data.val_files")
    else:
        draft.set("evaluation.num_prompts", most if most > 0 else 1_000_000, source.origin("data.val_max_samples"))
        draft.set("evaluation.every_steps", max(0, test), source.origin(often))
        draft.set("evaluation.on_start", before, source.origin("trainer.val_before_train"))
        draft.set("evaluation.samples_per_prompt", samples, source.origin(f"{ROLLOUT}.val_kwargs.n"))
        origin = source.origin(f"{ROLLOUT}.val_kwargs.temperature")
        draft.set("evaluation.temperature", temperature, origin)
        if shown > 0 and test > 0:
            draft.set("tracking.completions_every_steps", test, source.origin("trainer.log_val_generations", often))
            draft.set("tracking.num_completions", shown, source.origin("trainer.log_val_generations"))
        else:
            source.note_unused(draft, "trainer.log_val_generations", why="changes nothing without trainer.test_freq")
        draft.set("evaluation.top_p", top_p, source.origin(f"{ROLLOUT}.val_kwargs.top_p"))
        draft.set("evaluation.top_k", max(0, top_k), source.origin(f"{ROLLOUT}.val_kwargs.top_k"))
