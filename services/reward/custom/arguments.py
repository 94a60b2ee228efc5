"""The arguments that a custom verifier may take."""

from collections.abc import Collection
from typing import Any

from shoal.chat_templates.template_messages import for_template
from shoal.rollout import GroundTruth, Prompt
from shoal.v1 import rollout_pb2
from shoal.wire import finish_reason_from_wire, int32_from_wire


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
