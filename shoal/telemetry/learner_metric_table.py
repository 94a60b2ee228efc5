"""What the learner reports of a train step: its part of the table in `shoal.telemetry.run_metric_table`.

In the formulas, sums over tokens run over the tokens of the mini-batches that were applied, each epoch anew, on all
ranks, however they were packed; n is their number and m the number of their completions. For a token, p is its
log-probability under the policy as it was when the token was trained on, b the one that p is compared with
(`loss.baseline`: behavior or proximal; p itself where unknown), e the engine's, q the reference's, all at the sampling
temperature; r = exp(p - b); d = p - q; A is the advantage.
"""

from shoal.telemetry.run_metrics import TRAINED, WITH_REFERENCE, MetricSection, Presence, RunMetric

KNOWN = Presence("when the engine reported log-probabilities", lambda config: False)

LOSS = MetricSection(
    "Loss and policy",
    "Tokens are completion tokens that count in the loss. What a step did not apply is in none of the means.",
    (
        RunMetric(
            "objective/loss",
            "",
            "the GRPO loss, as it was minimised: KL and entropy terms included, averaged by `loss.aggregation`; mean "
            "over optimizer steps",
            "docs/algorithms.md",
            TRAINED,
        ),
        RunMetric(
            "loss/policy_avg",
            "",
            "mean policy loss of a token, weighted by the correction",
            "sum of policy losses / n",
            TRAINED,
        ),
        RunMetric(
            "policy/approxkl_avg",
            "nats",
            "mean approximate KL divergence to the baseline policy",
            "sum (p - b)^2 / 2 / n",
            TRAINED,
        ),
        RunMetric(
            "policy/clipfrac_avg",
            "share",
            "tokens whose objective a clip changed",
            "`policy/clipfrac_low` + `policy/clipfrac_high`",
            TRAINED,
        ),
        RunMetric(
            "policy/clipfrac_low",
            "share",
            "by the lower bound; for PPO r < 1 - `clip_low` where A < 0",
            "tokens / n",
            TRAINED,
        ),
        RunMetric(
            "policy/clipfrac_high",
            "share",
            "by the upper bound; for PPO r > 1 + `clip_high` where A > 0",
            "tokens / n",
            TRAINED,
        ),
        RunMetric("policy/clipfrac_dual", "share", "by `loss.dual_clip`", "tokens / n", TRAINED),
        RunMetric(
            "policy/entropy_avg",
            "nats",
            "mean entropy of the distributions that the tokens were scored under",
            "sum of entropies / n",
            TRAINED,
        ),
        RunMetric(
            "objective/entropy",
            "nats",
            "mean negative log-probability of a completion, an estimate of its entropy",
            "sum -p / m",
            TRAINED,
        ),
        RunMetric("val/ratio", "", "probability ratio of the policy to the baseline: mean", "sum r / n", TRAINED),
        RunMetric("val/ratio_var", "", "the same: variance over tokens", "sum r^2 / n - (sum r / n)^2", TRAINED),
        RunMetric("val/ratio_max", "", "the same: largest", "max r", TRAINED),
        RunMetric(
            "optim/grad_norm", "", "L2 norm of the gradient before clipping, mean over optimizer steps", "", TRAINED
        ),
        RunMetric(
            "optim/num_refused", "mini-batches", "skipped: loss or gradient was not finite, or every token was rejected"
        ),
        RunMetric("lr", "", "learning rate of the last optimizer step"),
    ),
)

KL = MetricSection(
    "Divergence from the reference",
    "",
    (
        RunMetric("objective/kl0_avg", "nats", "of a token, open-instruct's estimator 0", "sum d / n", WITH_REFERENCE),
        RunMetric(
            "objective/kl1_avg", "nats", "of a token, open-instruct's estimator 1", "sum d^2 / 2 / n", WITH_REFERENCE
        ),
        RunMetric(
            "objective/kl2_avg",
            "nats",
            "of a token, open-instruct's estimator 2",
            "sum (exp(-d) + d - 1) / n",
            WITH_REFERENCE,
        ),
        RunMetric(
            "objective/kl3_avg", "nats", "of a token, open-instruct's estimator 3", "sum r d / n", WITH_REFERENCE
        ),
        RunMetric(
            "objective/kl_coef",
            "",
            "coefficient of the KL term in this step; adapts with `kl.target`",
            "",
            WITH_REFERENCE,
        ),
        RunMetric(
            "loss/kl_avg",
            "nats",
            "mean KL term of a token, by `kl.estimator`, weighted",
            "`objective/kl_coef` x sum of estimates / n",
            WITH_REFERENCE,
        ),
    ),
)

GAP = MetricSection(
    "Engine, learner, correction",
    "The gap is measured before the step's first update: at staleness 0 it is what the two implementations differ by. "
    "Tokens without a log-probability from the engine are left out of it, and have weight 1.",
    (
        RunMetric(
            "val/logprob_gap_mean",
            "nats",
            "absolute difference between engine and learner on a token: mean",
            "mean abs(p - e)",
            TRAINED,
        ),
        RunMetric("val/logprob_gap_max", "nats", "the same: largest", "max abs(p - e)", TRAINED),
        RunMetric("val/logprob_gap_std", "nats", "the same: standard deviation", "ddof 1", TRAINED),
        RunMetric(
            "val/num_missing_behavior_logprobs", "tokens", "tokens for which the engine reported none", "", TRAINED
        ),
        RunMetric(
            "mismatch/kl", "nats", "KL divergence of the learner from the engine, estimator k1", "mean (e - p)", KNOWN
        ),
        RunMetric("mismatch/k3", "nats", "the same by estimator k3", "mean (exp(p - e) - (p - e) - 1)", KNOWN),
        RunMetric(
            "mismatch/reverse_kl",
            "nats",
            "the same, each token weighted by its probability",
            "mean exp(e) (e - p)",
            KNOWN,
        ),
        RunMetric("mismatch/chi2_token", "", "chi-squared divergence, by tokens", "mean exp(2 (p - e)) - 1", KNOWN),
        RunMetric("mismatch/chi2_sequence", "", "the same, by completions", "mean exp(2 sum (p - e)) - 1", KNOWN),
        RunMetric(
            "mismatch/learner_perplexity", "", "of a completion under the learner, mean", "mean exp(-mean p)", KNOWN
        ),
        RunMetric(
            "mismatch/engine_perplexity", "", "of a completion under the engine, mean", "mean exp(-mean e)", KNOWN
        ),
        RunMetric(
            "mismatch/log_perplexity_difference", "nats", "learner's minus engine's", "mean (mean e - mean p)", KNOWN
        ),
        RunMetric(
            "mismatch/weight_mean",
            "",
            "mean importance weight, if they were truncated at 2",
            "mean min(exp(p - e), 2)",
            KNOWN,
        ),
        RunMetric(
            "mismatch/effective_sample_size",
            "share",
            "tokens that as many equal weights would be",
            "1 / mean ((w / mean w)^2)",
            KNOWN,
        ),
        RunMetric("val/rho_weight", "", "mean weight of `[correction]`, 0 for what it dropped", "", TRAINED),
        RunMetric("val/rho_clipfrac", "share", "tokens whose weight was truncated", "", TRAINED),
        RunMetric("val/rho_drop_frac", "share", "tokens that its filters dropped", "", TRAINED),
        RunMetric("val/rho_drop_low_frac", "share", "of the tokens, those below a lower bound", "", TRAINED),
        RunMetric("val/rho_drop_high_frac", "share", "of the tokens, those above an upper bound", "", TRAINED),
        RunMetric(
            "val/dropped_share", "share", "tokens whose policy loss was dropped, for whatever reason", "", TRAINED
        ),
        RunMetric("val/rejected_share", "share", "tokens that left the divisor too (`reject`)"),
    ),
)

WORK = MetricSection(
    "The learner's work",
    "",
    (
        RunMetric(
            "val/num_step_tokens", "tokens", "prompt and completion of every completion, the prompt counted each time"
        ),
        RunMetric("val/num_loss_tokens", "tokens", "tokens that count in the loss"),
        RunMetric(
            "other/packed_ratio",
            "rows a completion",
            "packed rows for each completion: at 0.1 packing saves nine of ten forwards",
            "rows of one epoch / completions",
        ),
        RunMetric(
            "learner_tokens_per_second_step",
            "tokens/s",
            "tokens of the step over the learner's time for it",
            "`val/num_step_tokens` x `grpo.num_epochs` / seconds",
        ),
    ),
)

LEARNER = (LOSS, KL, GAP, WORK)
