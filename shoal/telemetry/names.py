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
    """The name of a metric, with its unit and meaning. Its class is the metric's kind."""

    name: str
    unit: str
    """In UCUM: "s", "By", or the counted thing in braces, such as "{token}"."""
    meaning: str


class CounterName(MetricName):
    """The name of a metric that only rises."""


class GaugeName(MetricName):
    """The name of a metric that keeps the last value."""


class HistogramName(MetricName):
    """The name of a metric that keeps the distribution of durations, in seconds."""


# One trace for each group: issue, sample, score, train step, publish.
GROUP_ISSUE = SpanName("group.issue", "Issue of a prompt as a group. Root of the group's trace.")
GROUP_SAMPLE = SpanName("group.sample", "Sampling the completions of a group, from dispatch to the last of them.")
GROUP_SCORE = SpanName("group.score", "Scoring the completions of a group.")
TRAIN_STEP = SpanName("train.step", "The train step that the group is part of; one span in each group's trace.")
EPISODE_PLAY = SpanName("episode.play", "One episode, from its first token to its result.")
EPISODE_TURN = SpanName("episode.turn", "Sampling one turn of an episode.")
EPISODE_ENVIRONMENT = SpanName("episode.environment", "The environment's answer to one turn of an episode.")
EPISODE_TOOL_CALL = SpanName("episode.tool_call", "One tool call of a turn, as the environment has timed it.")
WEIGHTS_PUBLISH = SpanName("weights.publish", "Publishing the weights that were trained on the group.")

RUN_ID = AttributeName("shoal.run_id", "Id of the run.")
GROUP_ID = AttributeName("shoal.group_id", "Id of the group within the run.")
POLICY_VERSION = AttributeName("shoal.policy_version", "Number of train steps behind the weights.")
WORKER_ID = AttributeName("shoal.worker_id", "Id of the worker process.")
SAMPLE_INDEX = AttributeName("shoal.sample_index", "Place of an episode in its group.")
REQUEST_ID = AttributeName("shoal.request_id", "Id of a turn, without the number of the try; ends with play and turn.")
TURN = AttributeName("shoal.turn", "Number of the turn that an environment answers; 0 before the first.")
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

RPC_SERVER_DURATION = HistogramName("rpc.server.call.duration", "s", "Time a server took for a call, streams included.")
LOOP_LAG = HistogramName("shoal.event_loop.lag", "s", "Delay of a process's event loop, measured twice a second.")
GENERATOR_TOKENS = CounterName(
    "shoal.generator.tokens",
    "{token}",
    "Tokens that were sampled; those of an unfinished completion as they are reported.",
)
GENERATOR_COMPLETIONS = CounterName(
    "shoal.generator.completions", "{completion}", "Finished completions, by finish reason."
)
GENERATOR_RUNNING = GaugeName("shoal.generator.running", "{completion}", "Completions that a generator is sampling.")
GENERATOR_WAITING = GaugeName("shoal.generator.waiting", "{completion}", "Completions that wait in a generator.")
GENERATOR_CACHE_USE = GaugeName(
    "shoal.generator.kv_cache_use", "1", "Share of a generator's key-value cache in use over the last seconds."
)
WEIGHTS_PAUSE = HistogramName("shoal.weights.pause", "s", "Pause of a generator during a load of weights.")
WEIGHTS_RECEIVE = HistogramName("shoal.weights.receive", "s", "Part of a load that went into receiving and hashing.")
WEIGHTS_LOAD = HistogramName("shoal.weights.load", "s", "Part of a load that went into the engine's own loading.")

REWARD_OPEN = GaugeName(
    "shoal.reward.open", "{completion}", "Completions that a reward service has accepted and not answered."
)
REWARD_RUNNING = GaugeName(
    "shoal.reward.running", "{completion}", "Completions that processes of the pool are scoring."
)
REWARD_WAITING = GaugeName("shoal.reward.waiting", "{completion}", "Completions that wait for a process of the pool.")
REWARD_WAIT = HistogramName("shoal.reward.wait", "s", "Wait of a completion for a process, by verifier.")
REWARD_DURATION = HistogramName(
    "shoal.reward.duration", "s", "Time of a verifier for a completion, without the wait, by verifier and outcome."
)
REWARD_VERDICTS = CounterName("shoal.reward.verdicts", "{verdict}", "Verdicts on completions, by verifier and outcome.")
REWARD_POOL_RESTARTS = CounterName(
    "shoal.reward.pool_restarts", "{process}", "Processes of the pool replaced because they died or hung."
)
ENVIRONMENT_OPEN = GaugeName(
    "shoal.environment.open", "{episode}", "Episodes that a reward service has open, by environment."
)
ENVIRONMENT_EPISODES = CounterName(
    "shoal.environment.episodes",
    "{episode}",
    "Episodes that ended, by environment and outcome; `aborted` for those without a result.",
)
ENVIRONMENT_CALL_DURATION = HistogramName(
    "shoal.environment.call_duration",
    "s",
    "Time of a call into an environment, the wait for its process included, by environment and call.",
)
ENVIRONMENT_PROCESSES = CounterName(
    "shoal.environment.processes", "{process}", "Processes of environments that were started."
)
ENVIRONMENT_REPLAYS = CounterName(
    "shoal.environment.replays",
    "{episode}",
    "Episodes that went on in another process, where their turns were played again.",
)
JUDGE_QUESTIONS = CounterName(
    "shoal.judge.questions", "{question}", "Questions to the judge, by source of the verdict."
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
    "Share of the run's time, pauses apart, in which it took steps that no attempt had taken before.",
)
RUN_GROUPS = CounterName(
    "shoal.run.groups", "{group}", "Groups that train steps, applied or skipped, have used up, by ledger state."
)
RUN_SAMPLING = GaugeName(
    "shoal.run.sampling",
    "{completion}",
    "Completions that the run waits for from generators, also those that wait for a generator; to scale these by.",
)
RUN_TOKENS_RESUMED = CounterName(
    "shoal.run.tokens_resumed",
    "{token}",
    "Tokens after which completions went on elsewhere, or after a pause, instead of being sampled again.",
)
RUN_COMPLETIONS_INTERRUPTED = CounterName(
    "shoal.run.completions_interrupted",
    "{completion}",
    "Completions that a generator was asked for and did not finish. Each has lost the tokens since its last "
    "report, at most `generator.report_every_tokens`.",
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
        "Traces and metrics go out over OTLP (gRPC) when `OTEL_EXPORTER_OTLP_ENDPOINT` is set; the other `OTEL_*`",
        "variables have their meaning in the OpenTelemetry SDK. With `--metrics-port` a service also serves them to",
        "Prometheus, with `_` for dots, the unit at the end of the name, and `_total` at the end of counters.",
        "",
        "Logs are one JSON object a line, on stderr or in `--log-file`, with `time`, `level`, `service`, `event`,",
        "`logger`, and `trace_id` and `span_id` within a span. The line of a run's event has its kind as `event`, and",
        "`message`, `run_id` and `attributes`; tables, such as a step's metrics, are in `events.jsonl` alone.",
        "`SHOAL_LOG_LEVEL` (default `INFO`) sets the level.",
        "",
        "## Spans",
        "",
        "Each call between services has a client span and a server span named after its method. Around them:",
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
