"""Names of the OpenTelemetry spans, attributes, and metrics, with units and meanings.

`python -m shoal.telemetry.names` generates docs/telemetry.md from this module.
"""

from dataclasses import dataclass
from typing import Self, TypeVar


class _Documented(str):
    """A name with its meaning."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        self = super().__new__(cls, name)
        self.meaning = meaning
        return self


class SpanName(_Documented):
    """The name of a span: a piece of work in a trace."""


class AttributeName(_Documented):
    """The name of an attribute of a span or a metric."""


@dataclass(frozen=True)
class MetricName:
    """The name of a metric, with its unit and meaning. The class of the name is the metric's kind."""

    name: str
    unit: str
    """The unit in UCUM: "s", "By", or the counted thing in braces, such as "{token}"."""
    meaning: str


class CounterName(MetricName):
    """The name of a counter, a metric that only rises."""


class GaugeName(MetricName):
    """The name of a gauge, a metric that keeps the last value."""


class HistogramName(MetricName):
    """The name of a histogram, a metric that keeps the distribution of durations, in seconds."""


# One trace for each group: issue, sample, score, train step, publish.
GROUP_ISSUE = SpanName("group.issue", "Issue of a prompt as a group; the root of the group's trace.")
GROUP_SAMPLE = SpanName("group.sample", "Sampling the completions of a group, from dispatch to the last completion.")
GROUP_SCORE = SpanName("group.score", "Scoring the completions of a group.")
TRAIN_STEP = SpanName("train.step", "The train step that the group is part of; one span in each group's trace.")
EPISODE_PLAY = SpanName("episode.play", "One episode, from its first token to its result.")
EPISODE_TURN = SpanName("episode.turn", "Sampling one turn of an episode.")
EPISODE_ENVIRONMENT = SpanName("episode.environment", "The environment's answer to one turn of an episode.")
EPISODE_TOOL_CALL = SpanName("episode.tool_call", "One tool call of a turn, as timed by the environment.")
WEIGHTS_PUBLISH = SpanName("weights.publish", "Publishing the weights that were trained on the group.")

RUN_ID = AttributeName("shoal.run_id", "Id of the run.")
GROUP_ID = AttributeName("shoal.group_id", "Id of the group within the run.")
POLICY_VERSION = AttributeName("shoal.policy_version", "Number of train steps behind the weights.")
WORKER_ID = AttributeName("shoal.worker_id", "Id of the worker process.")
SAMPLE_INDEX = AttributeName("shoal.sample_index", "Place of an episode in its group.")
REQUEST_ID = AttributeName(
    "shoal.request_id", "Id of a turn, without the number of the try. Ends with the numbers of play and turn."
)
TURN = AttributeName("shoal.turn", "Number of the turn that an environment answers; 0 before the first turn.")
TOOL = AttributeName("shoal.tool", "Name of the tool.")
OK = AttributeName("shoal.ok", "Whether a tool call succeeded.")
STATE = AttributeName("shoal.state", "Final state of a group: `TRAINED` or `DROPPED`.")
FINISH_REASON = AttributeName("shoal.finish_reason", "Why a completion ended: `stop` or `length`.")
SOURCE = AttributeName("shoal.source", "Source of a verdict: `endpoint`, or `cache` for a repeated question.")
DIRECTION = AttributeName("shoal.direction", "Direction of tokens: `input` or `output`.")

ENVIRONMENT = AttributeName("shoal.environment", "Name of the environment.")
CALL = AttributeName("shoal.environment.call", "Call into an environment: `reset` or `step`.")
VERIFIER = AttributeName("shoal.verifier", "Name of the verifier.")
OUTCOME = AttributeName("shoal.outcome", "Outcome of scoring: `scored`, `unscorable` or `failed`.")

RPC_SYSTEM = AttributeName("rpc.system", "Always `grpc`.")
RPC_SERVICE = AttributeName("rpc.service", "Full name of the service, for example `shoal.v1.RewardService`.")
RPC_METHOD = AttributeName("rpc.method", "Name of the method.")
RPC_STATUS = AttributeName("rpc.grpc.status_code", "Status of the call as a number; 0 is OK.")

RPC_SERVER_DURATION = HistogramName(
    "rpc.server.call.duration", "s", "Time that a server took for a call, including streams."
)
LOOP_LAG = HistogramName("shoal.event_loop.lag", "s", "Delay of a process's event loop, measured twice a second.")
GENERATOR_TOKENS = CounterName(
    "shoal.generator.tokens",
    "{token}",
    "Sampled tokens. Tokens of an unfinished completion are counted when they are reported.",
)
GENERATOR_COMPLETIONS = CounterName(
    "shoal.generator.completions", "{completion}", "Finished completions, by finish reason."
)
GENERATOR_RUNNING = GaugeName("shoal.generator.running", "{completion}", "Completions that a generator is sampling.")
GENERATOR_WAITING = GaugeName(
    "shoal.generator.waiting", "{completion}", "Completions that wait in the queue of a generator."
)
GENERATOR_CACHE_USE = GaugeName(
    "shoal.generator.kv_cache_use", "1", "Share of a generator's key-value cache in use over the last seconds."
)
WEIGHTS_PAUSE = HistogramName("shoal.weights.pause", "s", "Pause of a generator during a load of weights.")
WEIGHTS_RECEIVE = HistogramName(
    "shoal.weights.receive", "s", "Part of a load of weights that was spent on receiving and hashing."
)
WEIGHTS_LOAD = HistogramName(
    "shoal.weights.load", "s", "Part of a load of weights that was spent on the engine's own loading."
)

REWARD_OPEN = GaugeName(
    "shoal.reward.open", "{completion}", "Completions that a reward service has accepted and not answered."
)
REWARD_RUNNING = GaugeName(
    "shoal.reward.running", "{completion}", "Completions that processes of the reward pool are scoring."
)
REWARD_WAITING = GaugeName(
    "shoal.reward.waiting", "{completion}", "Completions that wait for a process of the reward pool."
)
REWARD_WAIT = HistogramName(
    "shoal.reward.wait", "s", "Time that a completion waits for a process of the reward pool, by verifier."
)
REWARD_DURATION = HistogramName(
    "shoal.reward.duration",
    "s",
    "Time that a verifier took for a completion, without the wait for a process, by verifier and outcome.",
)
REWARD_VERDICTS = CounterName("shoal.reward.verdicts", "{verdict}", "Verdicts on completions, by verifier and outcome.")
REWARD_POOL_RESTARTS = CounterName(
    "shoal.reward.pool_restarts",
    "{process}",
    "Processes of the reward pool that were replaced because they died or hung.",
)
ENVIRONMENT_OPEN = GaugeName(
    "shoal.environment.open", "{episode}", "Episodes that a reward service has open, by environment."
)
ENVIRONMENT_EPISODES = CounterName(
    "shoal.environment.episodes",
    "{episode}",
    "Ended episodes, by environment and outcome. The outcome of an episode without a result is `aborted`.",
)
ENVIRONMENT_CALL_DURATION = HistogramName(
    "shoal.environment.call_duration",
    "s",
    "Time of a call into an environment, including the wait for a process, by environment and call.",
)
ENVIRONMENT_PROCESSES = CounterName(
    "shoal.environment.processes", "{process}", "Processes of environments that were started."
)
ENVIRONMENT_REPLAYS = CounterName(
    "shoal.environment.replays",
    "{episode}",
    "Episodes that continued in another process, after a replay of their turns.",
)
JUDGE_QUESTIONS = CounterName(
    "shoal.judge.questions", "{question}", "Questions to the judge, by the source of the verdict."
)
JUDGE_TOKENS = CounterName("shoal.judge.tokens", "{token}", "Tokens read and written by the judge, by direction.")
JUDGE_COST = CounterName("shoal.judge.cost", "1", "Cost of the judge, by the prices of `reward.judge`.")

RUN_POLICY_VERSION = GaugeName("shoal.run.policy_version", "{step}", "Number of train steps behind the run's policy.")
RUN_CORRECT_RATE = GaugeName(
    "shoal.run.correct_rate", "1", "Share of the last step's scored completions that are correct."
)
RUN_EFFECTIVE_TIME = GaugeName(
    "shoal.run.effective_time",
    "1",
    "Share of the run's time, without pauses, in which the run took steps that no attempt had taken before.",
)
RUN_GROUPS = CounterName(
    "shoal.run.groups", "{group}", "Groups that applied or skipped train steps have used up, by ledger state."
)
RUN_SAMPLING = GaugeName(
    "shoal.run.sampling",
    "{completion}",
    "Completions that the run waits for, including completions that wait for a generator. Meant for "
    "scaling the number of generators.",
)
RUN_TOKENS_RESUMED = CounterName(
    "shoal.run.tokens_resumed",
    "{token}",
    "Tokens that were kept, instead of sampled again, when a completion continued in another generator or "
    "after a pause.",
)
RUN_COMPLETIONS_INTERRUPTED = CounterName(
    "shoal.run.completions_interrupted",
    "{completion}",
    "Completions that a generator began or queued and did not finish. Each such completion lost the tokens "
    "since its last report, at most `generator.report_every_tokens`.",
)
RUN_STEP = HistogramName("shoal.run.step", "s", "Time from one train step to the next.")
RUN_STEP_WAIT = HistogramName("shoal.run.step_wait", "s", "Part of a step in which the learner waited for groups.")
RUN_PUBLISH = HistogramName("shoal.run.publish", "s", "Duration of a publish to all generators.")

_N = TypeVar("_N", SpanName, AttributeName, MetricName)


def _declared(kind: type[_N]) -> list[_N]:
    return [value for value in globals().values() if isinstance(value, kind)]


def as_markdown() -> str:
    """Renders docs/telemetry.md."""
    lines = [
        "# Telemetry",
        "",
        "<!-- Generated by `python -m shoal.telemetry.names > docs/telemetry.md`; a test compares. -->",
        "",
        "Traces and metrics are sent over OTLP (gRPC) if `OTEL_EXPORTER_OTLP_ENDPOINT` is set; the other `OTEL_*`",
        "variables have their meaning in the OpenTelemetry SDK. With `--metrics-port` a service also serves its",
        "metrics to Prometheus. In the names for Prometheus, `_` replaces dots, the unit is at the end, and names of",
        "counters end with `_total`.",
        "",
        "Logs are written to stderr or `--log-file`, one JSON object per line. Each object has the fields `time`,",
        "`level`, `service`, `event` and `logger`, and within a span also `trace_id` and `span_id`. For an event of a",
        "run, `event` is the kind of the event, and the object also has `message`, `run_id` and `attributes`. Tables,",
        "such as the metrics of a step, are only in `events.jsonl`. `SHOAL_LOG_LEVEL` (default `INFO`) sets the",
        "level.",
        "",
        "## Spans",
        "",
        "Each call between services has a client span and a server span, both named after the method of the call. The",
        "following spans enclose the spans of calls:",
        "",
        "| span | meaning |",
        "| --- | --- |",
        *(f"| `{span}` | {span.meaning} |" for span in _declared(SpanName)),
        "",
        "## Metrics",
        "",
        "| metric | instrument | unit | meaning |",
        "| --- | --- | --- | --- |",
        *(
            f"| `{m.name}` | {type(m).__name__.removesuffix('Name').lower()} | {m.unit} | {m.meaning} |"
            for m in _declared(MetricName)
        ),
        "",
        "## Attributes",
        "",
        "| attribute | meaning |",
        "| --- | --- |",
        *(f"| `{attribute}` | {attribute.meaning} |" for attribute in _declared(AttributeName)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
