"""Step metrics of the learner: the learner's part of the table in `shoal.telemetry.run_metric_table`.

In the formulas, sums run over the tokens of the applied mini-batches, in every epoch and on all ranks, independent of
packing; n is the number of these tokens and m the number of their completions. For a token, p is the log-probability
of the token under the policy at the time of training. b is the log-probability that p is compared with
(`loss.baseline`: behavior or proximal; p itself if unknown). e is the engine's log-probability and q the reference's.
All are at the sampling temperature. r = exp(p - b); d = p - q; A is the advantage.
"""

from shoal.telemetry.run_metrics import ALWAYS, TRAINED, WITH_REFERENCE, MetricSection, Presence

KNOWN = Presence("when the engine reported log-probabilities")
ON_A_KNOWN_GPU = Presence("on a GPU whose data sheet the learner knows; not on a CPU")

LOSS = MetricSection(
    "Loss and policy",
    "Tokens are completion tokens that count in the loss. No mean includes mini-batches that were not applied.",
    TRAINED(
        "objective/loss",
        "",
        "the minimized GRPO loss with KL and entropy terms, averaged by `loss.aggregation`; mean over optimizer steps",
        "docs/algorithms.md",
    ),
    TRAINED(
        "loss/policy_avg", "", "mean policy loss per token, weighted by the correction", "sum of policy losses / n"
    ),
    TRAINED(
        "policy/approxkl_avg", "nats", "mean approximate KL divergence to the baseline policy", "sum (p - b)^2 / 2 / n"
    ),
    TRAINED(
        "policy/clipfrac_avg",
        "share",
        "tokens whose objective was clipped",
        "`policy/clipfrac_low` + `policy/clipfrac_high`",
    ),
    TRAINED(
        "policy/clipfrac_low",
        "share",
        "tokens clipped by the lower bound; for PPO r < 1 - `clip_low` if A < 0",
        "tokens / n",
    ),
    TRAINED(
        "policy/clipfrac_high",
        "share",
        "tokens clipped by the upper bound; for PPO r > 1 + `clip_high` if A > 0",
        "tokens / n",
    ),
    TRAINED("policy/clipfrac_dual", "share", "tokens clipped by `loss.dual_clip`", "tokens / n"),
    TRAINED(
        "policy/entropy_avg",
        "nats",
        "mean entropy of the policy's distribution at each token, over the token's support if sampling is restricted",
        "sum of entropies / n",
    ),
    TRAINED(
        "objective/entropy",
        "nats",
        "mean negative log-probability per completion, an estimate of the entropy",
        "sum -p / m",
    ),
    TRAINED("val/ratio", "", "probability ratio of policy to baseline: mean", "sum r / n"),
    TRAINED("val/ratio_var", "", "probability ratio: variance over tokens", "sum r^2 / n - (sum r / n)^2"),
    TRAINED("val/ratio_max", "", "probability ratio: maximum", "max r"),
    TRAINED("optim/grad_norm", "", "L2 norm of the gradient before clipping, mean over optimizer steps"),
    ALWAYS(
        "optim/num_refused",
        "mini-batches",
        "mini-batches skipped because loss or gradient was not finite, or every token was rejected",
    ),
    ALWAYS("lr", "", "learning rate of the last optimizer step"),
)

KL = MetricSection(
    "Divergence from the reference",
    "",
    WITH_REFERENCE("objective/kl0_avg", "nats", "mean KL per token, open-instruct's estimator 0", "sum d / n"),
    WITH_REFERENCE("objective/kl1_avg", "nats", "mean KL per token, open-instruct's estimator 1", "sum d^2 / 2 / n"),
    WITH_REFERENCE(
        "objective/kl2_avg", "nats", "mean KL per token, open-instruct's estimator 2", "sum (exp(-d) + d - 1) / n"
    ),
    WITH_REFERENCE("objective/kl3_avg", "nats", "mean KL per token, open-instruct's estimator 3", "sum r d / n"),
    WITH_REFERENCE("objective/kl_coef", "", "coefficient of the KL term in this step; adapts with `kl.target`"),
    WITH_REFERENCE(
        "loss/kl_avg",
        "nats",
        "mean weighted KL term per token, by `kl.estimator`",
        "`objective/kl_coef` x sum of estimates / n",
    ),
)

GAP = MetricSection(
    "Engine, learner, correction",
    "The gap is measured before the first update of the step, so at staleness 0 the gap is the difference between the "
    "two implementations. Tokens without a log-probability from the engine are excluded; their weight is 1.",
    TRAINED(
        "val/logprob_gap_mean",
        "nats",
        "absolute difference of a token's log-probability between engine and learner: mean",
        "mean abs(p - e)",
    ),
    TRAINED(
        "val/logprob_gap_max", "nats", "absolute difference of a token's log-probability: maximum", "max abs(p - e)"
    ),
    TRAINED(
        "val/logprob_gap_std", "nats", "absolute difference of a token's log-probability: standard deviation", "ddof 1"
    ),
    TRAINED("val/num_missing_behavior_logprobs", "tokens", "tokens without a log-probability from the engine"),
    KNOWN("mismatch/kl", "nats", "KL divergence of the learner from the engine, estimator k1", "mean (e - p)"),
    KNOWN(
        "mismatch/k3",
        "nats",
        "KL divergence of the learner from the engine, estimator k3",
        "mean (exp(p - e) - (p - e) - 1)",
    ),
    KNOWN(
        "mismatch/reverse_kl",
        "nats",
        "KL divergence of the learner from the engine, each token weighted by its probability",
        "mean exp(e) (e - p)",
    ),
    KNOWN("mismatch/chi2_token", "", "chi-squared divergence, by tokens", "mean exp(2 (p - e)) - 1"),
    KNOWN("mismatch/chi2_sequence", "", "chi-squared divergence, by completions", "mean exp(2 sum (p - e)) - 1"),
    KNOWN("mismatch/learner_perplexity", "", "mean perplexity of a completion under the learner", "mean exp(-mean p)"),
    KNOWN("mismatch/engine_perplexity", "", "mean perplexity of a completion under the engine", "mean exp(-mean e)"),
    KNOWN(
        "mismatch/log_perplexity_difference",
        "nats",
        "log-perplexity of the learner minus log-perplexity of the engine",
        "mean (mean e - mean p)",
    ),
    KNOWN("mismatch/weight_mean", "", "mean importance weight, truncated at 2", "mean min(exp(p - e), 2)"),
    KNOWN(
        "mismatch/effective_sample_size",
        "share",
        "effective sample size of the truncated importance weights, as a share of the tokens",
        "1 / mean ((w / mean w)^2)",
    ),
    TRAINED("val/rho_weight", "", "mean weight by `[correction]`, with 0 for dropped tokens"),
    TRAINED("val/rho_clipfrac", "share", "tokens with a truncated weight"),
    TRAINED("val/rho_drop_frac", "share", "tokens dropped by the filters of `[correction]`"),
    TRAINED("val/rho_drop_low_frac", "share", "tokens dropped below a lower bound"),
    TRAINED("val/rho_drop_high_frac", "share", "tokens dropped above an upper bound"),
    TRAINED("val/dropped_share", "share", "tokens whose policy loss was dropped for any reason"),
    ALWAYS("val/rejected_share", "share", "tokens that also left the divisor (`reject`)"),
)

WORK = MetricSection(
    "The learner's work",
    "",
    ALWAYS("val/num_step_tokens", "tokens", "tokens of all completions, each with its prompt"),
    ALWAYS("val/num_loss_tokens", "tokens", "tokens that count in the loss"),
    ALWAYS(
        "other/packed_ratio",
        "rows per completion",
        "packed rows per completion; at 0.1 packing saves nine of ten forward passes",
        "rows of one epoch / completions",
    ),
    ALWAYS(
        "learner_tokens_per_second_step",
        "tokens/s",
        "tokens of the step per second of the learner's time",
        "`val/num_step_tokens` x `grpo.num_epochs` / seconds",
    ),
    ALWAYS(
        "learner_tokens_per_second_per_rank",
        "tokens/s",
        "tokens of the packed rows, where completions share their prompt, per second and rank of the learner (a GPU, "
        "or a process on a CPU). The seconds are those of the mini-batches: forward and backward passes, reference, "
        "optimizer; not the survey before",
        "tokens of the rows of all ranks, in every epoch / (seconds x ranks)",
    ),
    ON_A_KNOWN_GPU(
        "learner_mfu",
        "share",
        "model FLOPs utilization in the same seconds, of the data sheet's rate of dense bfloat16 products. Matrix "
        "products and causal attention count, within the layers' windows, without padding and recomputation: 2 FLOPs "
        "forward and 4 backward for each value of a matrix and token, 2 backward if the matrix is frozen, as below "
        "adapters. The output layer counts for scored tokens (with restricted sampling for their supports), an expert "
        "for the tokens routed to it, the reference for a forward pass",
        "FLOPs of all ranks / (seconds x ranks x rate of a GPU)",
    ),
)

LEARNER = (LOSS, KL, GAP, WORK)
