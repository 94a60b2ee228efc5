"""The table of a run's metrics: metrics of the coordinator, for train steps and evaluations.

The learner's part is in `shoal.telemetry.learner_metric_table`.
"""

from dataclasses import replace

from shoal.telemetry.learner_metric_table import LEARNER
from shoal.telemetry.run_metrics import ALWAYS, TRAINED, MetricSection, Presence

VARYING = Presence("with at least six questions whose rewards differ")
JUDGED = Presence("when a verifier or an environment says what is correct")
SCORED = Presence("when a completion was scored")
COMPARED = Presence(
    "with more than two answers per question, if each question has a verifier that compares answers with each other"
)
SAMPLED = Presence("when a completion came back")
REPEATED = Presence("from the second evaluated step on")
MEASURED = Presence("when the metric applies")
SEEN = Presence("once a generator has reported a value")
PLAYED = Presence("when prompts name environments")
PUBLISHED = Presence("unless the run stopped before the publish")
WITH_KL = Presence(
    "with a reference that the loss or the reward uses",
    lambda config: config.kl.needs_reference and (config.kl.place == "loss" or config.kl.coef > 0),
)
RUNNING = Presence(
    "with `advantage.baseline` running_mean or `advantage.scale` running_std",
    lambda config: config.advantage.is_running,
)
KL_IN_REWARD = Presence(
    'with `kl.place = "reward"` and a coefficient', lambda config: config.kl.place == "reward" and config.kl.coef > 0
)

REWARDS = MetricSection(
    "Rewards",
    "These metrics cover all completions that the step consumed, trained on or not. A completion without a reward, "
    "because it is unscorable or its verifier failed, counts in no metric.",
    SCORED("objective/scores", "reward", "mean reward of the scored completions"),
    SCORED("objective/scores_mean", "reward", "`objective/scores` under another name"),
    SCORED("objective/reward_std", "reward", "standard deviation of the rewards of scored completions", "ddof 0"),
    SCORED(
        "objective/rlhf_reward",
        "reward",
        "mean reward minus the KL term",
        "`objective/scores` - `objective/non_score_reward`",
    ),
    SCORED(
        "objective/non_score_reward",
        "reward",
        "KL term that is, or would be, subtracted from the reward; 0 without a coefficient",
        "`objective/kl_coef` x `objective/kl`; if it is subtracted, `objective/reward_kl_coef` x `objective/reward_kl`",
    ),
    JUDGED(
        "objective/verifiable_correct_rate",
        "share",
        "correct completions, as a share of the scored completions for which correctness is decided",
    ),
    SCORED("objective/<verifier>_reward", "value", "mean value of one verifier"),
    SCORED("objective/<verifier>_correct_rate", "share", "completions with a value of at least 1 from one verifier"),
    MEASURED("val/format_scores", "value", "mean format score: the value of the verifier `r1_format`"),
    MEASURED(
        "reward/<part>",
        "reward",
        "mean of one part of the reward (docs/rewards.md): `verifiable`, `format`, ...; the parts sum to "
        "`objective/scores`",
    ),
    ALWAYS("val/unscored_rate", "share", "completions without a reward"),
    SAMPLED("val/<verifier>_unscorable_rate", "share", "completions that were unscorable for one verifier"),
    SAMPLED("val/<verifier>_failed_rate", "share", "completions on which one verifier failed"),
    SCORED("batch/percent_solved_mean", "share", "mean over groups of their reward as a share of the maximum reward"),
    JUDGED("other/unsolved_batch_size_ratio", "share", "scored completions that are not correct"),
    RUNNING("objective/running_reward_mean", "reward", "mean of all rewards that steps have compared so far"),
    RUNNING("objective/running_reward_std", "reward", "standard deviation of all rewards compared so far"),
    TRAINED("val/advantages_mean", "advantage", "mean advantage of the tokens trained on"),
    TRAINED("val/advantages_min", "advantage", "smallest advantage"),
    TRAINED("val/advantages_max", "advantage", "largest advantage"),
    TRAINED("val/completion_weight_max", "", "largest weight of a completion in the loss"),
)

COMPLETIONS = MetricSection(
    "Completions and data",
    "These metrics cover all completions that the step consumed, trained on or not.",
    SAMPLED("val/sequence_lengths", "tokens", "mean length of a completion"),
    SAMPLED("val/sequence_lengths_min", "tokens", "shortest completion"),
    SAMPLED("val/sequence_lengths_max", "tokens", "longest completion"),
    MEASURED("val/sequence_lengths_solved", "tokens", "mean length of the correct completions"),
    MEASURED("val/sequence_lengths_unsolved", "tokens", "mean length of the scored completions that are not correct"),
    ALWAYS("val/num_stop_token_ids", "tokens", "sampled stop tokens and stop strings; the first one ends a completion"),
    SAMPLED(
        "val/stop_token_rate",
        "share",
        "completions that ended with a stop token or a stop string",
        "`val/num_stop_token_ids` / completions",
    ),
    SAMPLED("val/truncated_rate", "share", "completions that reached `sampling.max_completion_tokens`"),
    ALWAYS("val/num_groups_dropped", "groups", "groups of the step that were not trained on"),
    ALWAYS("val/total_reward_groups", "groups", "groups of the step that were trained on"),
    MEASURED("dropped/<reason>", "groups", "groups dropped for one reason"),
    ALWAYS("batch/filtered_prompts", "groups", "groups without a signal: all rewards are equal"),
    ALWAYS("batch/filtered_prompts_zero", "groups", "groups without a signal with rewards of 0"),
    ALWAYS("batch/filtered_prompts_solved", "groups", "groups without a signal with the maximum reward"),
    ALWAYS("batch/filtered_prompts_nonzero", "groups", "groups without a signal with any other reward"),
    ALWAYS(
        "batch/filtered_prompts_pct",
        "share",
        "scored groups without a signal",
        "`batch/filtered_prompts` / scored groups",
    ),
    ALWAYS(
        "batch/all_wrong_prompts",
        "groups",
        "groups trained on whose completions are all wrong and differ only in other parts of their rewards: "
        "length, style, verifiers that do not say what is correct",
    ),
    ALWAYS("batch/refills", "groups", "groups that active sampling took beyond `grpo.groups_per_step`"),
    ALWAYS("batch/no_resampled_prompts", "prompts", "prompts that are no longer sampled (`grpo.easy_rate`)"),
    ALWAYS("batch/total_prompts", "prompts", "prompts in the data"),
    SAMPLED(
        "other/real_batch_size_ratio",
        "share",
        "completions trained on",
        "completions of groups with a signal / all completions of the step",
    ),
    ALWAYS("staleness/max", "steps", "staleness of the groups trained on: maximum"),
    ALWAYS("staleness/mean", "steps", "staleness of the groups trained on: mean"),
    ALWAYS("episode", "completions", "completions consumed since the start of the run"),
    ALWAYS("epoch", "passes", "passes over the data; 2.7 is 70 % of the third pass"),
)

EPISODES = MetricSection(
    "Episodes",
    "These metrics cover the episodes that the step consumed, trained on or not (docs/episodes.md). The names under "
    "`tools/` and `env/` are open-instruct's names.",
    PLAYED("episodes/turns", "turns", "mean number of turns of the policy"),
    PLAYED("episodes/segments", "segments", "mean number of segments, the contexts of the policy"),
    PLAYED(
        "episodes/prompt_tokens_again",
        "tokens",
        "mean number of tokens in the prompts of segments after the first, which are mostly computed again",
    ),
    PLAYED("episodes/turns_max", "turns", "largest number of turns"),
    PLAYED("episodes/tool_calls", "calls", "mean number of tool calls that were answered"),
    PLAYED("time/tools", "s", "mean time in tools over a whole episode"),
    PLAYED(
        "episodes/malformed_call_rate",
        "share",
        "calls that cannot be read, name no known tool, or do not fit the tool's schema",
    ),
    PLAYED("episodes/policy_tokens", "tokens", "mean number of sampled tokens"),
    PLAYED("episodes/environment_tokens", "tokens", "mean number of tokens between the sampled parts of an episode"),
    PLAYED("episodes/truncated_rate", "share", "episodes that a limit ended"),
    PLAYED("episodes/failed_rate", "share", "episodes whose environment, or whose workers, failed for good"),
    PLAYED(
        "tools/<tool>/avg_calls_per_rollout",
        "calls",
        "answered calls of one tool per episode; `aggregate` is all tools, `unknown` is calls of no known tool",
    ),
    PLAYED("tools/<tool>/failure_rate", "share", "answered calls of the tool that failed"),
    PLAYED("tools/<tool>/avg_runtime", "s", "mean time of the tool's answered calls"),
    PLAYED("env/<environment>/<metric>", "", "mean of a number that the environment reports"),
)

TIME = MetricSection(
    "Time, throughput, waiting",
    "Seconds are by the coordinator's clock. Rates and waiting shares cover the time since the last applied step, "
    "including evaluations in between.",
    ALWAYS("time/step", "s", "one step, from the wait for its groups to the publish of its weights, without pauses"),
    ALWAYS("time/waiting_for_groups", "s", "part of the step: the wait until all its groups were sampled and scored"),
    ALWAYS("time/training", "s", "part of the step: training in the learner"),
    ALWAYS("time/publishing", "s", "part of the step: the publish, until the generators had the new weights"),
    PUBLISHED("time/weights_broadcast", "s", "part of publishing: the broadcast itself"),
    PUBLISHED("time/weights_pause", "s", "longest pause of a generator for the publish"),
    PUBLISHED(
        "other/published_bytes", "bytes", "size of the published tensors, which are the model's or the adapters'"
    ),
    SAMPLED(
        "time/<verifier>_scoring",
        "s",
        "mean time of one verifier for a completion, by the reward service's clock, without the wait",
    ),
    SAMPLED("time/<verifier>_scoring_p95", "s", "95th percentile of one verifier's times"),
    SAMPLED("time/<verifier>_scoring_max", "s", "longest of one verifier's times"),
    ALWAYS("time/from_scratch", "s", "time since the coordinator started or resumed the run, without pauses"),
    ALWAYS(
        "time/effective_share",
        "share",
        "share of the run's time so far, without pauses, in which the run took steps that no attempt had taken before",
    ),
    ALWAYS("generator_tokens_per_second_step", "tokens/s", "completion tokens that all generators returned"),
    ALWAYS(
        "reward_tokens_per_second_step", "tokens/s", "completion tokens that came back scored from all reward services"
    ),
    ALWAYS(
        "learner_tokens_per_second_overall",
        "tokens/s",
        "prompt and completion tokens trained on, over the time since training began or was resumed",
        "sum of `val/num_step_tokens` / seconds",
    ),
    ALWAYS(
        "waiting/learner", "share", "time that the learner waited for groups", "`time/waiting_for_groups` / seconds"
    ),
    ALWAYS("waiting/generators", "share", "time in which no generator had anything to sample"),
    ALWAYS("waiting/rewards", "share", "time in which no reward service had anything to score"),
    ALWAYS(
        "usage/generator_seats",
        "share",
        "completions in sampling, as a share of what all generators can sample at once; mean over the step's time",
        "mean completions / (`generator.max_num_seqs` x generators)",
    ),
    SEEN(
        "usage/kv_cache",
        "share",
        "key-value cache in use: mean over the generators, each with the mean of its heartbeats since the last step, "
        "or else its last heartbeat; a heartbeat (every 3 s) reports the mean over the seconds before it",
    ),
)

EVALUATION = MetricSection(
    "Evaluations",
    "An evaluation has a separate line in `metrics.jsonl`, with the step of the policy that answered. What counts as "
    "correct: [rewards.md](rewards.md#what-is-correct).",
    ALWAYS("eval/num_prompts", "questions", "questions"),
    ALWAYS(
        "eval/num_prompts_left_out",
        "questions",
        "questions of the sources that are not asked: trained on, repeated, too long, or with a malformed label; the "
        "`evaluation` event has each number",
    ),
    ALWAYS("eval/num_completions", "answers", "requested answers", "questions x `evaluation.samples_per_prompt`"),
    ALWAYS("eval/unscored_rate", "share", "answers without a reward, which count in no other metric"),
    SCORED("eval/scores", "reward", "mean reward of the answers"),
    VARYING(
        "eval/scores_low",
        "reward",
        "lower end of the 95 % confidence interval of `eval/scores` (empirical likelihood); the mean rewards of the "
        "questions are the sample, and the interval stays within their range",
    ),
    VARYING("eval/scores_high", "reward", "upper end of the 95 % confidence interval of `eval/scores`"),
    JUDGED("eval/verifiable_correct_rate", "share", "correct answers; avg@n, with n = `evaluation.samples_per_prompt`"),
    JUDGED(
        "eval/verifiable_correct_rate_low",
        "share",
        "lower end of the 95 % confidence interval of `eval/verifiable_correct_rate` (Wilson); the more the answers "
        "to a question agree, the fewer independent draws these answers count as",
    ),
    JUDGED(
        "eval/verifiable_correct_rate_high",
        "share",
        "upper end of the 95 % confidence interval of `eval/verifiable_correct_rate`",
    ),
    REPEATED(
        "eval/correct_rate_change",
        "share",
        "change of `eval/verifiable_correct_rate` since the run's first evaluation, over questions scored in both",
    ),
    REPEATED(
        "eval/correct_rate_change_low",
        "share",
        "lower end of the change's 95 % confidence interval, paired by question; with 0 inside, the change is noise",
    ),
    REPEATED("eval/correct_rate_change_high", "share", "upper end of the change's 95 % confidence interval"),
    JUDGED(
        "eval/pass_at_<k>",
        "share",
        "unbiased estimate of the probability that one of k answers is correct, for each k of "
        "`evaluation.pass_at_k`; mean over questions with at least k scored answers",
        "1 - C(n - c, k) / C(n, k), with c of a question's n answers correct (arXiv:2107.03374)",
    ),
    JUDGED(
        "eval/pass_at_<k>_low",
        "share",
        "lower end of the 95 % confidence interval of pass@k (Wilson), with the questions as the sample",
    ),
    JUDGED("eval/pass_at_<k>_high", "share", "upper end of the 95 % confidence interval of pass@k"),
    COMPARED(
        "eval/maj_at_<k>",
        "share",
        "share of questions whose most frequent answer is correct, k being `evaluation.samples_per_prompt`; mean "
        "over questions with k scored answers. An answer that was not found has no vote",
        "if several answers are equally frequent, their mean (arXiv:2206.14858)",
    ),
    COMPARED(
        "eval/maj_at_<k>_low",
        "share",
        "lower end of the 95 % confidence interval of maj@k (Wilson), with the questions as the sample",
    ),
    COMPARED("eval/maj_at_<k>_high", "share", "upper end of the 95 % confidence interval of maj@k"),
    SCORED("eval/source/<source>/scores", "reward", "mean reward of the answers to the questions of one source"),
    JUDGED("eval/source/<source>/correct_rate", "share", "correct answers to the questions of one source"),
    JUDGED("eval/source/<source>/correct_rate_low", "share", "lower end of the source's 95 % confidence interval"),
    JUDGED("eval/source/<source>/correct_rate_high", "share", "upper end of the source's 95 % confidence interval"),
    JUDGED("eval/source/<source>/pass_at_<k>", "share", "pass@k of the questions of one source"),
    COMPARED("eval/source/<source>/maj_at_<k>", "share", "maj@k of the questions of one source"),
    SCORED("eval/reward/<part>", "reward", "mean of one part of the reward; the parts sum to `eval/scores`"),
    SCORED("eval/verifier/<verifier>/reward", "value", "mean value of one verifier"),
    SCORED("eval/verifier/<verifier>/correct_rate", "share", "answers with a value of at least 1 from one verifier"),
    *(
        replace(metric, name=f"eval/{metric.name}")
        for metric in EPISODES.metrics
        if metric.name.startswith(("episodes/", "env/"))
    ),
    SAMPLED("eval/sequence_lengths", "tokens", "mean length of an answer"),
    SAMPLED("eval/sequence_lengths_min", "tokens", "shortest answer"),
    SAMPLED("eval/sequence_lengths_max", "tokens", "longest answer"),
    SAMPLED("eval/stop_token_rate", "share", "answers that ended with a stop token or a stop string"),
    SAMPLED("eval/truncated_rate", "share", "answers that reached the evaluation's limit"),
    SAMPLED("eval/actor_tokens_per_second", "tokens/s", "sampled tokens per second of `time/evaluating`"),
    ALWAYS("time/evaluating", "s", "time from the first question to the last token, while the next step waited"),
)

DISTANCE = MetricSection(
    "Divergence of completions from the reference",
    "If the KL divergence is part of the loss, the learner measures it on the policy that it trains. If it is part "
    "of the reward, the coordinator measures it on the policy that sampled (e instead of p).",
    WITH_KL("objective/kl", "nats", "KL divergence of a completion, by estimator k1", "sum d / m"),
    WITH_KL("objective/kl2", "nats", "KL divergence of a completion, by estimator k2", "sum d^2 / 2 / m"),
    WITH_KL("objective/kl3", "nats", "KL divergence of a completion, by estimator k3", "sum (exp(-d) + d - 1) / m"),
    KL_IN_REWARD(
        "objective/reward_kl",
        "nats",
        "KL divergence of a completion by `kl.estimator`, clamped, as it is subtracted from the reward",
        "sum of estimates / m",
    ),
    KL_IN_REWARD(
        "objective/reward_kl_coef", "", "coefficient of `objective/reward_kl` in this step; adapts with `kl.target`"
    ),
)

COORDINATOR = (REWARDS, COMPLETIONS, TIME)
"""The coordinator's part of the metrics of a step."""

TABLE = (REWARDS, DISTANCE, *LEARNER, COMPLETIONS, EPISODES, TIME, EVALUATION)
"""The whole table, in the order of the page."""
