"""The table of a run's metrics: those of the coordinator, for train steps and evaluations.

The learner's part is in `shoal.telemetry.learner_metric_table`.
"""

from dataclasses import replace

from shoal.telemetry.learner_metric_table import LEARNER
from shoal.telemetry.run_metrics import (
    ALWAYS,
    COMPARED,
    JUDGED,
    KL_IN_REWARD,
    MEASURED,
    PLAYED,
    PUBLISHED,
    REPEATED,
    RUNNING,
    SAMPLED,
    SCORED,
    SEEN,
    TRAINED,
    VARYING,
    WITH_KL,
    MetricSection,
    RunMetric,
)

REWARDS = MetricSection(
    "Rewards",
    "Over all completions that the step consumed, trained on or not. A completion without a reward, because it is "
    "unscorable or its verifier failed, counts in no metric.",
    (
        RunMetric("objective/scores", "reward", "mean reward of the scored completions", "", SCORED),
        RunMetric("objective/scores_mean", "reward", "`objective/scores` under another name", "", SCORED),
        RunMetric("objective/reward_std", "reward", "standard deviation of these rewards", "ddof 0", SCORED),
        RunMetric(
            "objective/rlhf_reward",
            "reward",
            "mean reward minus the KL term",
            "`objective/scores` - `objective/non_score_reward`",
            SCORED,
        ),
        RunMetric(
            "objective/non_score_reward",
            "reward",
            "KL term that is, or would be, subtracted from the reward; 0 without a coefficient",
            "`objective/kl_coef` x `objective/kl`; if it is subtracted, `objective/reward_kl_coef` x "
            "`objective/reward_kl`",
            SCORED,
        ),
        RunMetric(
            "objective/verifiable_correct_rate",
            "share",
            "correct completions, among the scored ones of which a verifier or an environment says it",
            "",
            JUDGED,
        ),
        RunMetric("objective/<verifier>_reward", "value", "mean value of one verifier", "", SCORED),
        RunMetric(
            "objective/<verifier>_correct_rate",
            "share",
            "completions with a value of at least 1 from one verifier",
            "",
            SCORED,
        ),
        RunMetric(
            "val/format_scores",
            "value",
            "mean format score: the value of the verifier `r1_format`",
            "",
            MEASURED,
        ),
        RunMetric(
            "reward/<part>",
            "reward",
            "mean of one part of the reward (docs/rewards.md): `verifiable`, `format`, ...; the parts sum to "
            "`objective/scores`",
            "",
            MEASURED,
        ),
        RunMetric("val/unscored_rate", "share", "completions without a reward"),
        RunMetric(
            "val/<verifier>_unscorable_rate", "share", "completions that were unscorable for one verifier", "", SAMPLED
        ),
        RunMetric("val/<verifier>_failed_rate", "share", "completions on which one verifier failed", "", SAMPLED),
        RunMetric(
            "batch/percent_solved_mean",
            "share",
            "mean over groups of their reward as a share of the maximum reward",
            "",
            SCORED,
        ),
        RunMetric("other/unsolved_batch_size_ratio", "share", "scored completions that are not correct", "", JUDGED),
        RunMetric(
            "objective/running_reward_mean",
            "reward",
            "mean of all rewards that steps have compared so far",
            "",
            RUNNING,
        ),
        RunMetric("objective/running_reward_std", "reward", "standard deviation of these rewards", "", RUNNING),
        RunMetric("val/advantages_mean", "advantage", "mean advantage of the tokens trained on", "", TRAINED),
        RunMetric("val/advantages_min", "advantage", "smallest advantage", "", TRAINED),
        RunMetric("val/advantages_max", "advantage", "largest advantage", "", TRAINED),
        RunMetric("val/completion_weight_max", "", "largest weight of a completion in the loss", "", TRAINED),
    ),
)

COMPLETIONS = MetricSection(
    "Completions and data",
    "Over all completions that the step consumed, trained on or not.",
    (
        RunMetric("val/sequence_lengths", "tokens", "mean length of a completion", "", SAMPLED),
        RunMetric("val/sequence_lengths_min", "tokens", "shortest completion", "", SAMPLED),
        RunMetric("val/sequence_lengths_max", "tokens", "longest completion", "", SAMPLED),
        RunMetric("val/sequence_lengths_solved", "tokens", "mean length of the correct completions", "", MEASURED),
        RunMetric(
            "val/sequence_lengths_unsolved",
            "tokens",
            "mean length of the scored completions that are not correct",
            "",
            MEASURED,
        ),
        RunMetric(
            "val/num_stop_token_ids",
            "tokens",
            "sampled stop tokens and stop strings; the first one ends a completion",
        ),
        RunMetric(
            "val/stop_token_rate",
            "share",
            "completions that ended with a stop token or a stop string",
            "`val/num_stop_token_ids` / completions",
            SAMPLED,
        ),
        RunMetric(
            "val/truncated_rate", "share", "completions that reached `sampling.max_completion_tokens`", "", SAMPLED
        ),
        RunMetric("val/num_groups_dropped", "groups", "groups of the step that were not trained on"),
        RunMetric("val/total_reward_groups", "groups", "groups of the step that were trained on"),
        RunMetric("dropped/<reason>", "groups", "groups dropped for one reason", "", MEASURED),
        RunMetric("batch/filtered_prompts", "groups", "groups without a signal: all rewards are equal"),
        RunMetric("batch/filtered_prompts_zero", "groups", "groups without a signal with rewards of 0"),
        RunMetric("batch/filtered_prompts_solved", "groups", "groups without a signal with the maximum reward"),
        RunMetric("batch/filtered_prompts_nonzero", "groups", "the other groups without a signal"),
        RunMetric(
            "batch/filtered_prompts_pct",
            "share",
            "scored groups without a signal",
            "`batch/filtered_prompts` / scored groups",
        ),
        RunMetric(
            "batch/all_wrong_prompts",
            "groups",
            "groups trained on whose completions are all wrong, and differ in other parts of their rewards alone: "
            "length, style, verifiers that do not say what is correct",
        ),
        RunMetric("batch/refills", "groups", "groups that active sampling took beyond `grpo.groups_per_step`"),
        RunMetric("batch/no_resampled_prompts", "prompts", "prompts that are no longer sampled (`grpo.easy_rate`)"),
        RunMetric("batch/total_prompts", "prompts", "prompts in the data"),
        RunMetric(
            "other/real_batch_size_ratio",
            "share",
            "completions trained on",
            "completions of groups with a signal / all completions of the step",
            SAMPLED,
        ),
        RunMetric("staleness/max", "steps", "staleness of the groups trained on: maximum"),
        RunMetric("staleness/mean", "steps", "staleness of the groups trained on: mean"),
        RunMetric("episode", "completions", "completions consumed since the start of the run"),
        RunMetric("epoch", "passes", "passes over the data; 2.7 is 70 % of the third"),
    ),
)

EPISODES = MetricSection(
    "Episodes",
    "Over the episodes that the step consumed, trained on or not (docs/episodes.md). The names under `tools/` and "
    "`env/` are those of open-instruct.",
    (
        RunMetric("episodes/turns", "turns", "mean number of turns of the policy", "", PLAYED),
        RunMetric("episodes/segments", "segments", "mean number of segments, the contexts of the policy", "", PLAYED),
        RunMetric(
            "episodes/prompt_tokens_again",
            "tokens",
            "mean number of tokens in the prompts of segments after the first, which are mostly computed again",
            "",
            PLAYED,
        ),
        RunMetric("episodes/turns_max", "turns", "largest number of turns", "", PLAYED),
        RunMetric("episodes/tool_calls", "calls", "mean number of tool calls that were answered", "", PLAYED),
        RunMetric("time/tools", "s", "mean time in tools, a whole episode", "", PLAYED),
        RunMetric(
            "episodes/malformed_call_rate",
            "share",
            "calls that cannot be read, or name no tool, or do not fit its schema",
            "",
            PLAYED,
        ),
        RunMetric("episodes/policy_tokens", "tokens", "mean number of sampled tokens", "", PLAYED),
        RunMetric(
            "episodes/environment_tokens", "tokens", "mean number of tokens between what was sampled", "", PLAYED
        ),
        RunMetric("episodes/truncated_rate", "share", "episodes that a limit ended", "", PLAYED),
        RunMetric(
            "episodes/failed_rate", "share", "episodes whose environment, or whose workers, failed for good", "", PLAYED
        ),
        RunMetric(
            "tools/<tool>/avg_calls_per_rollout",
            "calls",
            "answered calls of one tool, an episode; `aggregate` is all tools, `unknown` whatever is none",
            "",
            PLAYED,
        ),
        RunMetric("tools/<tool>/failure_rate", "share", "these calls that failed", "", PLAYED),
        RunMetric("tools/<tool>/avg_runtime", "s", "mean time of these calls", "", PLAYED),
        RunMetric("env/<environment>/<metric>", "", "mean of a number that the environment reports", "", PLAYED),
    ),
)

TIME = MetricSection(
    "Time, throughput, waiting",
    "Seconds are by the coordinator's clock. Rates and waiting shares cover the time since the last applied step, "
    "including evaluations in between.",
    (
        RunMetric("time/step", "s", "one step, from the wait for its groups to the publish of its weights, no pause"),
        RunMetric("time/waiting_for_groups", "s", "part of the step: until all its groups were sampled and scored"),
        RunMetric("time/training", "s", "part of the step: in the learner"),
        RunMetric("time/publishing", "s", "part of the step: until the generators had the new weights"),
        RunMetric("time/weights_broadcast", "s", "part of publishing: the broadcast itself", "", PUBLISHED),
        RunMetric("time/weights_pause", "s", "longest pause of a generator for the publish", "", PUBLISHED),
        RunMetric(
            "other/published_bytes", "bytes", "the published tensors: the model's, or its adapters'", "", PUBLISHED
        ),
        RunMetric(
            "time/<verifier>_scoring",
            "s",
            "mean time of one verifier for a completion, by the reward service's clock, without the wait",
            "",
            SAMPLED,
        ),
        RunMetric("time/<verifier>_scoring_p95", "s", "95th percentile of these times", "", SAMPLED),
        RunMetric("time/<verifier>_scoring_max", "s", "longest of these times", "", SAMPLED),
        RunMetric("time/from_scratch", "s", "time since the coordinator started or resumed the run, pauses apart"),
        RunMetric(
            "time/effective_share",
            "share",
            "the run's time so far, pauses apart, in which it took steps that no attempt had taken before",
        ),
        RunMetric("generator_tokens_per_second_step", "tokens/s", "completion tokens from all generators"),
        RunMetric(
            "reward_tokens_per_second_step",
            "tokens/s",
            "completion tokens that came back scored from all reward services",
        ),
        RunMetric(
            "learner_tokens_per_second_overall",
            "tokens/s",
            "prompt and completion tokens trained on, over the time since training began or was resumed",
            "sum of `val/num_step_tokens` / seconds",
        ),
        RunMetric(
            "waiting/learner", "share", "time that the learner waited for groups", "`time/waiting_for_groups` / seconds"
        ),
        RunMetric("waiting/generators", "share", "time in which no generator had anything to sample"),
        RunMetric("waiting/rewards", "share", "time in which no reward service had anything to score"),
        RunMetric(
            "usage/generator_seats",
            "share",
            "completions in sampling, of those that all generators can sample at once; mean over the time of the step",
            "mean completions / (`generator.max_num_seqs` x generators)",
        ),
        RunMetric(
            "usage/kv_cache",
            "share",
            "key-value cache in use; mean over the generators and their heartbeats since the last step (every 3 s, "
            "each of the seconds before it), or the last one's value",
            presence=SEEN,
        ),
    ),
)

EVALUATION = MetricSection(
    "Evaluations",
    "An evaluation has a separate line in `metrics.jsonl`, with the step of the policy that answered. What counts as "
    "correct: [rewards.md](rewards.md#what-is-correct).",
    (
        RunMetric("eval/num_prompts", "questions", "questions"),
        RunMetric(
            "eval/num_prompts_left_out",
            "questions",
            "questions of the sources that are not asked: trained on, repeated, too long, or with a malformed label; "
            "the `evaluation` event has each number",
        ),
        RunMetric(
            "eval/num_completions", "answers", "requested answers", "questions x `evaluation.samples_per_prompt`"
        ),
        RunMetric("eval/unscored_rate", "share", "answers without a reward; they count in no other metric"),
        RunMetric("eval/scores", "reward", "mean reward of the answers", "", SCORED),
        RunMetric(
            "eval/scores_low",
            "reward",
            "lower end of its 95 % confidence interval (empirical likelihood), with the mean rewards of the questions "
            "as the sample, whose range it does not leave",
            "",
            VARYING,
        ),
        RunMetric("eval/scores_high", "reward", "upper end of that interval", "", VARYING),
        RunMetric(
            "eval/verifiable_correct_rate",
            "share",
            "correct answers; avg@n, with n = `evaluation.samples_per_prompt`",
            "",
            JUDGED,
        ),
        RunMetric(
            "eval/verifiable_correct_rate_low",
            "share",
            "lower end of the 95 % confidence interval of `eval/verifiable_correct_rate` (Wilson); the more the "
            "answers to a question agree, the fewer draws they count as",
            "",
            JUDGED,
        ),
        RunMetric("eval/verifiable_correct_rate_high", "share", "upper end of that interval", "", JUDGED),
        RunMetric(
            "eval/correct_rate_change",
            "share",
            "`eval/verifiable_correct_rate` minus that of the run's first evaluation, over questions scored in both",
            "",
            REPEATED,
        ),
        RunMetric(
            "eval/correct_rate_change_low",
            "share",
            "lower end of its 95 % confidence interval, paired by question; with 0 inside, the change is within noise",
            "",
            REPEATED,
        ),
        RunMetric("eval/correct_rate_change_high", "share", "upper end of that interval", "", REPEATED),
        RunMetric(
            "eval/pass_at_<k>",
            "share",
            "unbiased estimate of the probability that one of k answers is correct, for each k of "
            "`evaluation.pass_at_k`; mean over questions with at least k scored answers",
            "1 - C(n - c, k) / C(n, k), with c of a question's n answers correct (arXiv:2107.03374)",
            JUDGED,
        ),
        RunMetric(
            "eval/pass_at_<k>_low",
            "share",
            "lower end of its 95 % confidence interval (Wilson), with the questions as the sample",
            "",
            JUDGED,
        ),
        RunMetric("eval/pass_at_<k>_high", "share", "upper end of that interval", "", JUDGED),
        RunMetric(
            "eval/maj_at_<k>",
            "share",
            "share of questions whose most frequent answer is correct, k being `evaluation.samples_per_prompt`; mean "
            "over questions with k scored answers. An answer that was not found has no vote",
            "of answers that are equally frequent, the mean (arXiv:2206.14858)",
            COMPARED,
        ),
        RunMetric(
            "eval/maj_at_<k>_low",
            "share",
            "lower end of its 95 % confidence interval (Wilson), with the questions as the sample",
            "",
            COMPARED,
        ),
        RunMetric("eval/maj_at_<k>_high", "share", "upper end of that interval", "", COMPARED),
        RunMetric(
            "eval/source/<source>/scores",
            "reward",
            "mean reward of the answers to the questions of one source",
            "",
            SCORED,
        ),
        RunMetric(
            "eval/source/<source>/correct_rate", "share", "correct answers to the questions of one source", "", JUDGED
        ),
        RunMetric(
            "eval/source/<source>/correct_rate_low", "share", "lower end of its 95 % confidence interval", "", JUDGED
        ),
        RunMetric("eval/source/<source>/correct_rate_high", "share", "upper end of that interval", "", JUDGED),
        RunMetric("eval/source/<source>/pass_at_<k>", "share", "pass@k of the questions of one source", "", JUDGED),
        RunMetric("eval/source/<source>/maj_at_<k>", "share", "maj@k of the questions of one source", "", COMPARED),
        RunMetric(
            "eval/reward/<part>", "reward", "mean of one part of the reward; the parts sum to `eval/scores`", "", SCORED
        ),
        RunMetric("eval/verifier/<verifier>/reward", "value", "mean value of one verifier", "", SCORED),
        RunMetric(
            "eval/verifier/<verifier>/correct_rate",
            "share",
            "answers with a value of at least 1 from one verifier",
            "",
            SCORED,
        ),
        *(
            replace(metric, name=f"eval/{metric.name}")
            for metric in EPISODES.metrics
            if metric.name.startswith(("episodes/", "env/"))
        ),
        RunMetric("eval/sequence_lengths", "tokens", "mean length of an answer", "", SAMPLED),
        RunMetric("eval/sequence_lengths_min", "tokens", "shortest answer", "", SAMPLED),
        RunMetric("eval/sequence_lengths_max", "tokens", "longest answer", "", SAMPLED),
        RunMetric(
            "eval/stop_token_rate", "share", "answers that ended with a stop token or a stop string", "", SAMPLED
        ),
        RunMetric("eval/truncated_rate", "share", "answers that reached the evaluation's limit", "", SAMPLED),
        RunMetric(
            "eval/actor_tokens_per_second", "tokens/s", "sampled tokens per second of `time/evaluating`", "", SAMPLED
        ),
        RunMetric(
            "time/evaluating",
            "s",
            "time from the first question to the last token, while the next step waited",
            "",
            ALWAYS,
        ),
    ),
    of_evaluation=True,
)

DISTANCE = MetricSection(
    "Divergence of completions from the reference",
    "If the KL divergence is part of the loss, the learner measures it on the policy that it trains. If it is part of "
    "the reward, the coordinator measures it on the policy that sampled (e instead of p).",
    (
        RunMetric("objective/kl", "nats", "KL divergence of a completion, by estimator k1", "sum d / m", WITH_KL),
        RunMetric(
            "objective/kl2", "nats", "KL divergence of a completion, by estimator k2", "sum d^2 / 2 / m", WITH_KL
        ),
        RunMetric(
            "objective/kl3",
            "nats",
            "KL divergence of a completion, by estimator k3",
            "sum (exp(-d) + d - 1) / m",
            WITH_KL,
        ),
        RunMetric(
            "objective/reward_kl",
            "nats",
            "KL divergence of a completion by `kl.estimator`, clamped, as it is subtracted from the reward",
            "sum of estimates / m",
            KL_IN_REWARD,
        ),
        RunMetric(
            "objective/reward_kl_coef",
            "",
            "coefficient of `objective/reward_kl` in this step; adapts with `kl.target`",
            "",
            KL_IN_REWARD,
        ),
    ),
)

COORDINATOR = (REWARDS, COMPLETIONS, TIME)
"""The coordinator's part of a step's metrics."""

TABLE = (REWARDS, DISTANCE, *LEARNER, COMPLETIONS, EPISODES, TIME, EVALUATION)
"""The whole table, in the order of the page."""
