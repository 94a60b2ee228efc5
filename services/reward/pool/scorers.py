"""Scorers whose verifiers run in the pool: the rules that come with Shoal, and custom verifiers."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from services.reward.common.scorer import ListedVerifier, token_ids, whole_text
from services.reward.custom.custom_verifiers import CustomVerifiers
from services.reward.pool.pool import VerifierPool
from services.reward.verifiers.registry import ALL_VERIFIERS, VERIFIERS
from shoal.chat_templates.template_messages import for_template
from shoal.config.tables.custom_verifiers import CustomVerifierConfig
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.v1 import rollout_pb2
from shoal.wire import finish_reason_from_wire, int32_from_wire


class RuleScorer:
    """The verifiers of `services/reward/verifiers`. Starts and closes the pool."""

    def __init__(self, pool: VerifierPool, keep_thoughts: Collection[str] = ()) -> None:
        """`keep_thoughts` is that of `reward`."""
        self._pool = pool
        self._keep_thoughts = keep_thoughts
        self.names: Collection[str] = ALL_VERIFIERS.keys()

    def unavailable(self, name: str) -> str:
        return ALL_VERIFIERS[name].missing_package

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        reads = VERIFIERS[truth.verifier].reads
        is_cut = reads == "answer" and truth.verifier not in self._keep_thoughts
        text = whole_text(prompt, completion) if is_cut else completion.text
        tokens = token_ids(completion) if reads in ("num_tokens", "token_ids") else ()
        can_stop = VERIFIERS[truth.verifier].can_stop
        return await self._pool.judge(
            truth.verifier, text, truth.label, tokens, group=prompt.prompt_id, can_stop=can_stop
        )

    async def label_problem(self, truth: GroundTruth) -> str:
        # Verifiers read their label before the completion, so judging an empty completion checks the label. It costs
        # nothing, and the rules for labels are only in the verifier.
        judged = await self._pool.judge(truth.verifier, "", truth.label)
        return "" if judged.outcome is ScoreOutcome.SCORED else judged.detail

    async def describe(self) -> Sequence[ListedVerifier]:
        # Looking for a sandbox takes a second.
        return await asyncio.gather(*(asyncio.to_thread(_listed, name) for name in ALL_VERIFIERS))


def _listed(name: str) -> ListedVerifier:
    verifier = ALL_VERIFIERS[name]
    why = verifier.missing_package or verifier.unavailable()
    return ListedVerifier(name, verifier.reads, verifier.description, why)


class CustomScorer:
    """The custom verifiers of a configuration and of installed packages. It does not start or close the pool."""

    def __init__(
        self, config: Mapping[str, CustomVerifierConfig], pool: VerifierPool, packages: Sequence[str] = ()
    ) -> None:
        """Functions of `packages` may be verifiers, or, if it is empty, functions of any package."""
        self._pool = pool
        self._custom = CustomVerifiers(config, pool.use, packages)

    @property
    def names(self) -> Collection[str]:
        return self._custom.verifiers.keys()

    @property
    def notice(self) -> str:
        """Files whose new version is not used; empty if there are none."""
        return self._custom.notice

    def unavailable(self, name: str) -> str:
        return self._custom.verifiers[name].unavailable

    async def find(self) -> None:
        """Loads each verifier once, in its own process. Raises `InvalidArgument` with each unusable table and the
        reason; then no verifier is changed."""
        await self._custom.find()

    async def reload(self) -> None:
        """Does the same as `find`, and also reads the functions' imports again."""
        await self._custom.find()
        if self._custom.verifiers:
            self._pool.renew()

    async def start(self) -> None:
        self._custom.watch()

    async def close(self) -> None:
        await self._custom.close()

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        return await self._pool.judge_custom(truth.verifier, CustomArguments(truth, prompt, completion).values)

    async def label_problem(self, truth: GroundTruth) -> str:
        return ""  # Only the verifier's author knows which labels it accepts.

    async def describe(self) -> Sequence[ListedVerifier]:
        return [
            ListedVerifier(
                name,
                reads=" ".join(sorted(custom.parameters)),
                description=custom.description or f"A custom verifier: {custom.code.location}",
                unavailable=custom.unavailable,
                code_digest=custom.digest,
            )
            for name, custom in self._custom.verifiers.items()
        ]


class CustomArguments:
    """The values of all arguments for one completion."""

    def __init__(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> None:
        """Raises `InvalidArgument` for a malformed completion."""
        self._token_ids = int32_from_wire(completion.token_ids, "completion.token_ids")
        self._prompt = prompt
        self._values = {
            "completion": completion.text,
            "label": truth.label,
            "finish_reason": finish_reason_from_wire(completion.finish_reason).value,
            "prompt_id": prompt.prompt_id,
        }

    def values(self, names: Collection[str]) -> dict[str, Any]:
        """Returns the values of some names of `loading.NAMES`, in the form for another process."""
        return {name: self._value(name) for name in names}

    def _value(self, name: str) -> Any:
        match name:
            case "prompt":
                return self._prompt.question
            case "messages":
                return list(map(for_template, self._prompt.messages))
            case "token_ids":
                return self._token_ids.tolist()
        return self._values[name]
