"""The table of a run's metrics: what the coordinator reports of train steps and of evaluations.

The learner's part is in `shoal.telemetry.learner_metric_table`.
"""

from shoal.telemetry.learner_metric_table import LEARNER
from shoal.telemetry.run_metrics import (
    ALWAYS,
    KL_IN_REWARD,
    MEASURED,
    PUBLISHED,
    RUNNING,
    SAMPLED,
    SCORED,
    TRAINED,
    WITH_KL,
    MetricSection,
    RunMetric,
)

REWARDS = MetricSection(
    "Rewards",
    "Over all completions that the step used up, trained on or not. A completion without a reward, because it cannot "
    "be judged or its verifier failed, counts in none of them.",
    (
        RunMetric("objective/scores", "reward", "mean reward of the scored completions", "", SCORED),
        RunMetric("objective/scores_mean", "reward", "the same, by its other name", "", SCORED),
        RunMetric("objective/reward_std", "reward", "standard deviation of these rewards", "ddof 0", SCORED),
        RunMetric(
            "objective/rlhf_reward",
            "reward",
            "mean reward with the KL divergence taken from it",
            "`objective/scores` - `objective/non_score_reward`",
            SCORED,
        ),
        RunMetric(
            "objective/non_score_reward",
            "reward",
            "what the KL divergence takes from the reward, or would; 0 without a coefficient",
            "`objective/kl_coef` x `objective/kl`; where it is taken, `objective/reward_kl_coef` x "
            "`objective/reward_kl`",
            SCORED,
        ),
        RunMetric(
            "objective/verifiable_correct_rate",
            "share",
            "scored completions that every verifier calls correct (its value is at least 1)",
            "",
            SCORED,
        ),
        RunMetric("objective/<verifier>_reward", "value", "mean value that one verifier gave", "", SCORED),
        RunMetric(
            "objective/<verifier>_correct_rate", "share", "completions that one verifier calls correct", "", SCORED
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
            "mean share of one part in the reward (docs/rewards.md): `verifiable`, `format`, ...; the parts sum up to "
            "`objective/scores`",
            "",
            MEASURED,
        ),
        RunMetric("val/unscored_rate", "share", "completions without a reward"),
        RunMetric(
            "val/<verifier>_unscorable_rate", "share", "completions that one verifier could not judge", "", SAMPLED
        ),
        RunMetric("val/<verifier>_failed_rate", "share", "completions that one verifier broke on", "", SAMPLED),
        RunMetric(
            "batch/percent_solved_mean", "share", "mean over groups of their reward's share of the highest", "", SCORED
        ),
        RunMetric("other/unsolved_batch_size_ratio", "share", "scored completions that are not correct", "", SCORED),
        RunMetric(
            "objective/running_reward_mean",
            "reward",
            "mean of all rewards that steps have compared so far",
            "",
            RUNNING,
        ),
        RunMetric("objective/running_reward_std", "reward", "their standard deviation", "", RUNNING),
        RunMetric("val/advantages_mean", "advantage", "mean over the tokens that are trained on", "", TRAINED),
        RunMetric("val/advantages_min", "advantage", "least of them", "", TRAINED),
        RunMetric("val/advantages_max", "advantage", "largest of them", "", TRAINED),
        RunMetric("val/completion_weight_max", "", "largest weight of a completion in the loss", "", TRAINED),
    ),
)

COMPLETIONS = MetricSection(
    "Completions and data",
    "Over all completions that the step used up, trained on or not.",
    (
        RunMetric("val/sequence_lengths", "tokens", "mean length of a completion", "", SAMPLED),
        RunMetric("val/sequence_lengths_min", "tokens", "shortest", "", SAMPLED),
        RunMetric("val/sequence_lengths_max", "tokens", "longest", "", SAMPLED),
        RunMetric("val/sequence_lengths_solved", "tokens", "mean length of the correct ones", "", MEASURED),
        RunMetric(
            "val/sequence_lengths_unsolved",
            "tokens",
            "mean length of those that are scored and not correct",
            "",
            MEASURED,
        ),
        RunMetric(
            "val/num_stop_token_ids",
            "tokens",
            "stop tokens and stop strings that were sampled; a completion ends with its first",
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
        RunMetric("dropped/<reason>", "groups", "groups that were dropped for one reason", "", MEASURED),
        RunMetric("batch/filtered_prompts", "groups", "groups whose rewards are all equal, so that they teach nothing"),
        RunMetric("batch/filtered_prompts_zero", "groups", "of these, all rewards 0"),
        RunMetric("batch/filtered_prompts_solved", "groups", "of these, all rewards the highest"),
        RunMetric("batch/filtered_prompts_nonzero", "groups", "of these, the others"),
        RunMetric(
            "batch/filtered_prompts_pct",
            "share",
            "scored groups without a signal",
            "`batch/filtered_prompts` / scored groups",
        ),
        RunMetric("batch/refills", "groups", "groups that active sampling took beyond `grpo.groups_per_step`"),
        RunMetric("batch/no_resampled_prompts", "prompts", "prompts that are not asked again (`grpo.easy_rate`)"),
        RunMetric("batch/total_prompts", "prompts", "prompts in the data"),
        RunMetric(
            "other/real_batch_size_ratio",
            "share",
            "completions that were trained on",
            "completions of groups with a signal / all completions of the step",
            SAMPLED,
        ),
        RunMetric("staleness/max", "steps", "staleness of the groups that were trained on: largest"),
        RunMetric("staleness/mean", "steps", "the same: mean"),
        RunMetric("episode", "completions", "completions used up since the start of the run"),
        RunMetric("epoch", "passes", "passes over the data, 2.7 is 70 % through the third"),
    ),
)

TIME = MetricSection(
    "Time, throughput, waiting",
    "Seconds are by the coordinator's clock. Rates and waiting shares are over the time since the last step that was "
    "applied, evaluations in between included.",
    (
        RunMetric("time/step", "s", "one step, from the wait for its groups to the publish of its weights"),
        RunMetric("time/waiting_for_groups", "s", "of these, until all its groups were sampled and scored"),
        RunMetric("time/training", "s", "of these, in the learner"),
        RunMetric("time/publishing", "s", "of these, until the generators held the new weights"),
        RunMetric("time/weights_broadcast", "s", "of publishing, the broadcast itself", "", PUBLISHED),
        RunMetric(
            "time/weights_pause", "s", "longest time that a generator stood still for the publish", "", PUBLISHED
        ),
        RunMetric(
            "time/<verifier>_scoring",
            "s",
            "mean time that one verifier took for a completion, by the reward service's clock, without the wait",
            "",
            SAMPLED,
        ),
        RunMetric("time/<verifier>_scoring_p95", "s", "of these, the one that 95 % do not exceed", "", SAMPLED),
        RunMetric("time/<verifier>_scoring_max", "s", "the longest", "", SAMPLED),
        RunMetric("time/from_scratch", "s", "since the coordinator began or resumed the run"),
        RunMetric("generator_tokens_per_second_step", "tokens/s", "completion tokens that came from all generators"),
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
    ),
)

EVALUATION = MetricSection(
    "Evaluations",
    "An evaluation has a line of its own in `metrics.jsonl`, with the step of the policy that answered. An answer is "
    "correct when every verifier gives at least 1.",
    (
        RunMetric("eval/num_prompts", "questions", "questions asked"),
        RunMetric(
            "eval/num_completions", "answers", "answers asked for", "questions x `evaluation.samples_per_prompt`"
        ),
        RunMetric("eval/unscored_rate", "share", "answers without a reward; they count in none of the others"),
        RunMetric("eval/scores", "reward", "mean reward of the answers", "", SCORED),
        RunMetric("eval/verifiable_correct_rate", "share", "correct answers", "", SCORED),
        RunMetric(
            "eval/pass_at_<k>",
            "share",
            "chance that k answers hold a correct one, without bias, for k = 1, 2, 4, ... and "
            "`evaluation.samples_per_prompt`; mean over questions with at least k scored answers",
            "1 - C(n - c, k) / C(n, k), with c of a question's n answers correct (arXiv:2107.03374)",
            SCORED,
        ),
        RunMetric(
            "eval/source/<source>/scores", "reward", "mean reward of the answers to one source's questions", "", SCORED
        ),
        RunMetric("eval/source/<source>/correct_rate", "share", "correct answers among them", "", SCORED),
        RunMetric("eval/verifier/<verifier>/reward", "value", "mean value that one verifier gave", "", SCORED),
        RunMetric(
            "eval/verifier/<verifier>/correct_rate", "share", "answers that one verifier calls correct", "", SCORED
        ),
        RunMetric("eval/sequence_lengths", "tokens", "mean length of an answer", "", SAMPLED),
        RunMetric("eval/sequence_lengths_min", "tokens", "shortest", "", SAMPLED),
        RunMetric("eval/sequence_lengths_max", "tokens", "longest", "", SAMPLED),
        RunMetric(
            "eval/stop_token_rate", "share", "answers that ended with a stop token or a stop string", "", SAMPLED
        ),
        RunMetric("eval/truncated_rate", "share", "answers that reached the evaluation's limit", "", SAMPLED),
        RunMetric("eval/actor_tokens_per_second", "tokens/s", "answer tokens over `time/evaluating`", "", SAMPLED),
        RunMetric(
            "time/evaluating", "s", "from the first question to the last token, while the next step waited", "", ALWAYS
        ),
    ),
    of_evaluation=True,
)

DISTANCE = MetricSection(
    "Divergence of completions from the reference",
    "Measured by the learner, on the policy that it trains, where the KL divergence is part of the loss; by the "
    "coordinator, on the policy that sampled (e instead of p), where it is part of the reward.",
    (
        RunMetric("objective/kl", "nats", "KL divergence of a completion, by estimator k1", "sum d / m", WITH_KL),
        RunMetric("objective/kl2", "nats", "the same by estimator k2", "sum d^2 / 2 / m", WITH_KL),
        RunMetric("objective/kl3", "nats", "the same by estimator k3", "sum (exp(-d) + d - 1) / m", WITH_KL),
        RunMetric(
            "objective/reward_kl",
            "nats",
            "KL divergence of a completion by `kl.estimator`, clamped, as the reward is lowered by it",
            "sum of estimates / m",
            KL_IN_REWARD,
        ),
        RunMetric(
            "objective/reward_kl_coef", "", "its coefficient in this step; adapts with `kl.target`", "", KL_IN_REWARD
        ),
    ),
)

COORDINATOR = (REWARDS, COMPLETIONS, TIME)
"""What the coordinator adds to what the learner reports of a step."""

TABLE = (REWARDS, DISTANCE, *LEARNER, COMPLETIONS, TIME, EVALUATION)
"""All of it, in the order of the page."""
