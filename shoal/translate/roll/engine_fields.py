"""ROLL's settings of the workers that sample, evaluate, refer and reward, one row each."""

from shoal.config.tables.sampling import MAX_TOP_K
from shoal.translate.roll.run_fields import PLACES
from shoal.translate.roll.worker_fields import common, model_rows
from shoal.translate.shared.field import (
    Field,
    accepted,
    choice,
    composed,
    each,
    ignored,
    mapped,
    not_yet,
    outside,
    refused,
    text_list,
)

GENERATING = "actor_infer.generating_args"
ENGINE = "actor_infer.strategy_args.strategy_config"
VALIDATION = "validation.generating_args"
VALIDATION_FILES = "validation.data_args.file_name"

_EVALUATION = "[evaluation] says how held-out questions are answered"
_REFERENCE = "the learner loads the reference model when [kl] needs it"

ENGINES: list[Field] = [
    ignored("actor_infer.worker_cls", "the engine is vLLM"),
    *each(ignored("actor_infer.", "only actor_train trains"), "pg_variant training_args training_args.*"),
    mapped(
        "actor_infer.model_args.dtype",
        "text",
        "bf16",
        "generator.dtype",
        choice({"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", None: "auto"}),
    ),
    composed("actor_infer.model_args.model_name_or_path", "text", None, "model.path"),
    *model_rows("actor_infer"),
    ignored("actor_infer.model_args.*", "the engine uses the learner's weights and its own kernels"),
    composed(f"{GENERATING}.temperature", "number", 0.95, "sampling.temperature"),
    composed(
        f"{GENERATING}.top_p",
        "number",
        0.7,
        "sampling.top_p sampling.top_k",
        why=f"below 1 with top_k = -1, at most {MAX_TOP_K} tokens remain: the learner needs their set",
    ),
    composed(f"{GENERATING}.top_k", "integer", 50, "sampling.top_k"),
    mapped(f"{GENERATING}.stop_strings", "any", None, "sampling.stop_strings", text_list),
    accepted(
        f"{GENERATING}.include_stop_str_in_output",
        "flag",
        None,
        "the tokens of a stop string are kept and trained on, with either value",
        accepts=[True, False],
    ),
    ignored(f"{GENERATING}.max_new_tokens", "ROLL replaces it by response_length: sampling.max_completion_tokens"),
    ignored(f"{GENERATING}.max_length", "ROLL replaces it by response_length: sampling.max_completion_tokens"),
    ignored(f"{GENERATING}.num_return_sequences", "ROLL replaces it by num_return_sequences_in_group: grpo.group_size"),
    ignored(f"{GENERATING}.length_penalty", "an option of beam search, which num_beams turns on"),
    refused(f"{GENERATING}.num_beams", "integer", 1, "Shoal samples completions, and has no beam search", accepts=[1]),
    *(
        ignored(f"{prefix}.do_sample", "ROLL's engines do not read it: temperature 0 is greedy")
        for prefix in (GENERATING, VALIDATION)
    ),
    ignored(f"{GENERATING}.logprobs", "the engine returns the log-probability of every token"),
    ignored(f"{GENERATING}.seed", "each request has its own seed, derived from run.seed"),
    refused(
        f"{GENERATING}.repetition_penalty",
        "number",
        1.0,
        "the learner's probabilities have no penalty, so the importance ratio would be biased",
    ),
    ignored("actor_infer.data_args.*", "the coordinator renders each prompt once, for training: model.chat_template"),
    ignored("actor_infer.strategy_args.strategy_name", "the engine is vLLM"),
    mapped(f"{ENGINE}.gpu_memory_utilization", "number", 0.9, "generator.gpu_memory_utilization"),
    mapped(f"{ENGINE}.tensor_parallel_size", "integer", 1, "generator.tensor_parallel_size"),
    mapped(f"{ENGINE}.pipeline_parallel_size", "integer", 1, "generator.pipeline_parallel_size"),
    mapped(f"{ENGINE}.enforce_eager", "flag", False, "generator.enforce_eager"),
    mapped(f"{ENGINE}.max_num_seqs", "integer", 256, "generator.max_num_seqs"),
    composed(f"{ENGINE}.max_model_len", "integer", None, "generator.max_model_len"),
    *each(
        not_yet(f"{ENGINE}.", "any", None, "FP8 rollout", accepts=(None, "auto")),
        "quantization kv_cache_dtype online_quantization",
    ),
    not_yet(f"{ENGINE}.enable_expert_parallel", "flag", False, "mixture of experts", accepts=(None, False)),
    ignored(f"{ENGINE}.online_quantization_config.*", "an option of online_quantization"),
    *each(
        refused(f"{ENGINE}.", "any", None, "Shoal uses the model's own config.json: change that file instead"),
        "hf_overrides hf_overrides.* rope_scaling rope_scaling.*",
    ),
    ignored(f"{ENGINE}.*", "a detail of the engine; [generator] has the details that Shoal sets"),
    ignored("actor_infer.device_mapping", PLACES),
    *common("actor_infer"),
    composed("reference.model_args.model_name_or_path", "text", None, "model.path"),
    ignored("reference.*", _REFERENCE),
    composed(VALIDATION_FILES, "texts", None, "evaluation.sources"),
    ignored("validation.data_args.*", "evaluation prompts are read as training prompts are"),
    composed(f"{VALIDATION}.temperature", "number", 0.95, "evaluation.temperature"),
    composed(f"{VALIDATION}.top_p", "number", 0.7, "evaluation.top_p"),
    composed(f"{VALIDATION}.top_k", "integer", 50, "evaluation.top_k"),
    composed(f"{VALIDATION}.num_return_sequences", "integer", 1, "evaluation.samples_per_prompt"),
    outside(
        f"{VALIDATION}.repetition_penalty", "number", 1.0, "held-out questions are answered without it", accepts=[1.0]
    ),
    ignored(f"{VALIDATION}.max_new_tokens", "ROLL replaces it: evaluation.max_completion_tokens"),
    ignored(f"{VALIDATION}.*", _EVALUATION),
    ignored("validation.eval_steps", "ROLL reads the eval_steps of the pipeline: evaluation.every_steps"),
    ignored("validation.*", _EVALUATION),
    composed("rewards", "table", None, "reward.remap reward.verifiers reward.repetition reward.judge data.sources"),
    refused("rewards.*", "any", None, "give the whole table of rewards in the file, since its parts decide together"),
    composed("reward_model", "table", None, "reward.judge"),
]
