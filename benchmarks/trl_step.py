"""Train steps of TRL's GRPOTrainer, for `benchmarks/step.py`, which starts this script with the Python of another
environment.

Writes a line of JSON with the versions and the way of sampling, then a line for each step. On a CPU TRL samples with
`transformers.generate`. The environment needs TRL and torch, and nothing of Shoal; docs/performance.md has the commands
that make it.
"""

import argparse
import json
from importlib.metadata import version

VERSIONS = ("trl", "transformers", "torch", "accelerate")


def share_of_digits(completions, **columns):
    """Returns the share of digits in each completion. Shoal's run calls this function too (convention "trl")."""
    texts = [completion[0]["content"] for completion in completions]
    return [sum(character.isdigit() for character in text) / max(1, len(text)) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--prompts", required=True, help="JSONL file with a column prompt")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--completion-tokens", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="sequences of a forward and backward pass")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--beta1", type=float, required=True)
    parser.add_argument("--beta2", type=float, required=True)
    parser.add_argument("--eps", type=float, required=True)
    parser.add_argument("--max-grad-norm", type=float, required=True)
    parser.add_argument("--folder", required=True, help="for the trainer's files")
    parser.add_argument("--log", required=True, help="JSONL file that is written")
    options = parser.parse_args()

    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(options.threads)
    num_sequences = options.groups * options.group_size
    config = GRPOConfig(
        output_dir=options.folder, max_steps=options.steps, save_strategy="no", report_to=[], logging_steps=1,
        use_cpu=True, disable_tqdm=True, shuffle_dataset=False,
        # As the learner: float32 weights and optimizer state, no recomputation of activations.
        bf16=options.dtype == "bfloat16", model_init_kwargs={"dtype": "float32"}, gradient_checkpointing=False,
        per_device_train_batch_size=options.batch, gradient_accumulation_steps=num_sequences // options.batch,
        num_generations=options.group_size, max_completion_length=options.completion_tokens, temperature=1.0, beta=0.0,
        optim="adamw_torch_fused", learning_rate=options.learning_rate, lr_scheduler_type="constant", weight_decay=0.0,
        adam_beta1=options.beta1, adam_beta2=options.beta2, adam_epsilon=options.eps,
        max_grad_norm=options.max_grad_norm,
    )  # fmt: skip

    log = open(options.log, "w", buffering=1)  # noqa: SIM115

    class Steps(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            if "completions/min_length" in logs:
                lengths = [logs[f"completions/{which}_length"] for which in ("min", "max")]
                log.write(json.dumps({"step": state.global_step, "lengths": lengths}) + "\n")

    with open(options.prompts) as lines:
        data = Dataset.from_list([{"prompt": json.loads(line)["prompt"]} for line in lines])
    trainer = GRPOTrainer(options.model, share_of_digits, args=config, train_dataset=data, callbacks=[Steps()])
    sampling = "vLLM" if trainer.use_vllm else "transformers.generate"
    log.write(json.dumps({"versions": {name: version(name) for name in VERSIONS}, "sampling": sampling}) + "\n")
    trainer.train()


if __name__ == "__main__":
    main()
