"""The declaration of a verifier."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from services.reward.common.verdict import Unscorable, Verdict
from shoal.chat_templates.thoughts import without_thoughts
from shoal.config.tables.section import Section


@dataclass(frozen=True)
class Verifier:
    """A verifier. Its name is the name of the module that declares it as `VERIFIER`."""

    verify: Callable[..., Verdict]
    """Judges a text by a label, and by options if the verifier has options. Raises `Unscorable`; any other exception
    means that the verifier broke. `reads` decides which text and which keyword argument it gets."""
    values: str
    """Range of the value, for people: "1 or 0"."""
    best: Literal["correct", "measure", "zero"] = "correct"
    """The meaning of its best value. "correct": it is 1 and means a right answer, or the form that the task demands.
    "measure": it is 1 and measures length or style. "zero": it is 0. If options decide whether 1 is reached, their
    table has the property `reaches_1`."""
    can_stop: bool = True
    """Whether judging may be stopped anywhere and begun anew later. False if that would leave processes behind."""
    options: type[Section] | None = None
    """The table `reward.verifiers.<name>`. tools/verifier_docs.py copies its source into
    shoal/config/tables/verifiers.py, so it may use nothing but `Section`, `Field` and `Literal`."""
    reads: Literal["answer", "completion", "num_tokens", "token_ids"] = "answer"
    """The input of `verify`. `answer`: the completion's text outside of thoughts. Others: the whole text, to judge form
    or length. `num_tokens` and `token_ids` are also passed as keywords."""
    load: Callable[[], None] = lambda: None
    """Imports what `verify` needs. Called once in each process, outside any deadline of a completion."""
    package: str = ""
    """A package that the verifier needs."""
    extra: str = "reward"
    """The extra of Shoal that installs `package`."""
    same_answers: str = ""
    """The rule by which two answers count as the same in a vote (maj@k), for people. Empty if answers are not compared
    with each other; then no verdict has an `answer`."""
    unavailable: Callable[[], str] = lambda: ""
    """Returns why the verifier cannot judge on this machine; empty if it can. May take a second. Completions that still
    come are FAILED with this reason."""

    @property
    def summary(self) -> str:
        """The first line of the docstring of the verifier's module."""
        return (inspect.getdoc(inspect.getmodule(self.verify)) or "").partition("\n")[0]

    @property
    def description(self) -> str:
        """The description of its input, its value, and the range of the value."""
        return inspect.getdoc(self.verify) or ""

    @cached_property
    def missing_package(self) -> str:
        """The way to install the verifier's package; empty if the package is installed."""
        if not self.package or importlib.util.find_spec(self.package) is not None:
            return ""
        return f"the verifier needs the package {self.package}: pip install 'shoal[{self.extra}]'"

    def judge(
        self,
        completion: str,
        label: Any,
        token_ids: Sequence[int],
        options: Mapping[str, Any],
        *,
        keep_thoughts: bool = False,
    ) -> Verdict:
        """Calls `verify` with its input, or with the whole text if `keep_thoughts`. Raises the errors of `verify`."""
        arguments = [self.options.model_validate(options)] if self.options else []
        if self.reads == "answer" and not keep_thoughts:
            answer = without_thoughts(completion)
            verdict = self.verify(answer, label, *arguments)
            return verdict if answer or not completion else replace(verdict, detail="nothing but thoughts")
        if self.reads in ("answer", "completion"):
            return self.verify(completion, label, *arguments)
        if completion and not token_ids:
            raise Unscorable("the completion has no token ids, which this verifier needs")
        read: Any = len(token_ids) if self.reads == "num_tokens" else token_ids
        return self.verify(completion, label, *arguments, **{self.reads: read})
