"""Translates the settings of another system into a configuration, or into reasons why there is none."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.config.changes import merged_values
from shoal.config.fields import listed
from shoal.config.load import apply_override, parse_config
from shoal.config.tables.custom_verifiers import find_files
from shoal.config.tables.environments import find_environment_files
from shoal.config.tables.sampling import MAX_TOP_K
from shoal.errors import InvalidArgument
from shoal.translate.shared.draft import Draft, Origin, Refusal, Source
from shoal.translate.shared.field import NOT_YET
from shoal.translate.shared.system import System
from shoal.translate.shared.toml import TABLES, to_toml
from shoal.translate.sources.settings import Settings
from shoal.translate.version import CURRENT, Version, implied_version, with_defaults

EVERYTHING = "all"
_SAME = (
    frozenset({"environment", "environment_column"}),
    frozenset({"verifier", "verifier_column", "labels"}),
    frozenset({"label_columns", "ground_truth_column"}),
)
"""Groups of settings that have the same meaning in a source."""
_FEATURES = {
    "vision": re.compile(
        r"(^|(?<!qwen2.5)(?<!qwen3)[-_/.\d])vl([-_.\d]|$)|(^|[-_/.\d])(vision|omni|llava|idefics\d?|smolvlm\d?)([-_.\d]|$)"
        r"|internvl|minicpm-?(v|o)\b|pixtral|glm-?4[._]?[15]v|mistral-small-3|gemma-?3n",
        re.IGNORECASE,
    ),
    "mixture of experts": re.compile(
        r"-a\d+(\.\d+)?b\b|mixtral|(^|[-_/\d])moe([-_/.\d]|$)|gpt-?oss|moonlight|deepseek-?(v[2-9]|r1-?(0528|zero)?$)"
        r"|olmoe|kimi[-_]?k\d|longcat-?flash|glm-?(4\.[5-9]|[5-9](\.\d)?(-|$))|llama-?4|minimax-?m\d",
        re.IGNORECASE,
    ),
}
"""Feature that is not yet available -> the names of the families of models that need it.

Of some models that can read images the text part can be trained, so their names are absent.
"""


@dataclass(frozen=True)
class Translation:
    """The result of translating one source."""

    toml: str
    """The configuration; empty when a refusal blocks it."""
    values: dict[str, Any]
    """The configuration as values for `parse_config`."""
    notes: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    """All refusals, including skipped ones."""
    skipped: frozenset[str]
    """Names of refused fields that were left out on request."""

    @property
    def blocking(self) -> list[Refusal]:
        """The refusals that prevent a configuration."""
        return [refusal for refusal in self.refusals if refusal.blocks and not self.leaves_out(refusal)]

    def leaves_out(self, refusal: Refusal) -> bool:
        return refusal.name in self.skipped and not refusal.is_needed


def translate(
    system: System,
    settings: Settings,
    *,
    skip: Sequence[str] = (),
    overrides: Sequence[str] = (),
    title: str = "",
    version: Version = CURRENT,
) -> Translation:
    """Translates settings. Each setting is either mapped, or named in a note or a refusal.

    `skip` names refused fields to leave out on purpose ("all" for every field); `overrides` are settings of Shoal,
    "a.b=value", which are applied last; `version` decides the defaults. Raises `InvalidArgument` when an override
    cannot be read.
    """
    version = implied_version(system, version, settings)
    system, settings = with_defaults(system, version, settings)
    draft = Draft(notes=list(settings.notes))
    source = Source(
        system.table,
        settings.values,
        draft,
        system=system.name,
        since=version.suffix,
        checkout=version.checkout,
        functions=settings.functions,
    )
    _judge(system, settings, source, draft)
    answered = {override.partition("=")[0].strip() for override in overrides}
    _keep_given_length(draft, answered)
    values = _with_overrides(draft, overrides)
    if "path" not in values.get("model", {}):
        reason = "the source names no model: give --set model.path=MODEL"
        draft.refuse(system.model_field, None, reason, is_needed=True)
    if not values.get("data", {}).get("sources") and not any(
        refusal.is_needed and refusal.cure == "data.sources" for refusal in draft.refusals
    ):
        where = system.data_field or "data"
        reason = "the source names no data: give --set 'data.sources=[{dataset = \"NAME\"}]'"
        draft.refuse(where, None, reason, is_needed=True)
    _drop_answered(draft, answered)
    skipped = frozenset(r.name for r in draft.refusals) if EVERYTHING in skip else frozenset(skip)
    for name in set(skip) - {refusal.name for refusal in draft.refusals} - {EVERYTHING}:
        draft.notes.append(f"--skip {name}: no field of this name is refused")
    if not Translation("", values, (), tuple(draft.refusals), skipped).blocking:
        try:
            parse_config(values)
        except InvalidArgument as error:
            for violation in error.violations:
                reason = f"the translated value is invalid: {violation.description}; give another value with --set"
                draft.refuse(violation.field, None, reason, is_needed=True)
    result = Translation("", values, tuple(draft.notes), tuple(draft.refusals), skipped)
    if result.blocking:
        return result
    return replace(result, toml=to_toml(draft, _header(system, title, result, version)))


def _judge(system: System, settings: Settings, source: Source, draft: Draft) -> None:
    """Maps, notes or refuses every setting of the source."""
    for name, reason in settings.unset.items():
        if name in system.measured:
            source.measured[name] = reason
        else:
            source.miss(name, reason, is_needed=name.rpartition(".")[2] == system.data_field)
    for name, (value, why) in system.implied.items():
        draft.set(name, value, Origin(why, False))
    source.sort()
    system.compose(source, draft)
    _bound_support(draft)
    _refuse_model_features(system.model_field, draft)
    if unsaid := source.unsaid():
        draft.notes.append(
            "settings without a line in the configuration, because Shoal does the same anyway, or because other "
            f"settings leave them no effect: {', '.join(unsaid)}"
        )
    # A refusal may keep other fields from being read.
    for name in source.unused() if not any(refusal.blocks for refusal in draft.refusals) else ():
        reason = "Shoal knows this field, but did not translate it: set what it decides with --set, and --skip it"
        draft.refuse(name, source.origin(name).text if name in system.rows else None, reason)


def _bound_support(draft: Draft) -> None:
    """Sets `sampling.top_k` if top-p or min-p exclude tokens and the source has no top-k; notes the difference."""
    top_p, min_p = draft.values.get("sampling.top_p") or 1.0, draft.values.get("sampling.min_p") or 0.0
    if draft.values.get("sampling.top_k"):
        draft.notes.append(
            f"{draft.origins['sampling.top_k']}: the learner normalizes only over the tokens that top-k keeps, so the "
            "importance ratio has no bias"
        )
        return
    if top_p >= 1 and min_p <= 0:
        return
    names = [name for name, is_on in (("sampling.top_p", top_p < 1), ("sampling.min_p", min_p > 0)) if is_on]
    origin = " and ".join(dict.fromkeys(draft.origins[name] for name in names))
    draft.set("sampling.top_k", MAX_TOP_K, Origin(origin, any(name in draft.explicit for name in names)))
    exact = f" (min_p already excludes them if any probability is {1 / MAX_TOP_K / min_p:.2g} or more)" if min_p else ""
    draft.notes.append(
        f"{origin}: sampling.top_k is added, so each token is drawn from at most the {MAX_TOP_K} likeliest tokens. The "
        "learner normalizes over the same tokens, so the importance ratio has no bias; a smaller top_k costs less. "
        f"With a very flat distribution, less likely tokens are never drawn{exact}"
    )


def _refuse_model_features(field: str, draft: Draft) -> None:
    """Refuses the model in `field` of the source if its name shows a feature that is not yet available."""
    path = draft.values.get("model.path") or ""
    for feature, names in _FEATURES.items():
        if names.search(path):
            draft.refuse(field, path, f"not yet available: {NOT_YET[feature]}", cure="model.path")


def _keep_given_length(draft: Draft, given: set[str]) -> None:
    lengths = ("run.num_steps", "run.total_episodes", "run.total_epochs")
    for name in lengths if given.intersection(lengths) else ():
        if name not in given and draft.values.pop(name, None) is not None:
            draft.notes.append(f"--set replaces the length of the run in the source: {draft.origins[name]}")


def _drop_answered(draft: Draft, answered: set[str]) -> None:
    """Turns refusals that an override resolves into notes."""
    for refusal in draft.refusals:
        if refusal.value and _is_answered(refusal.cure, answered):
            draft.notes.append(f"{refusal}; --set {refusal.cure} decides it")
    draft.refusals = [refusal for refusal in draft.refusals if not _is_answered(refusal.cure, answered)]


def _is_answered(cure: str, answered: set[str]) -> bool:
    """Returns whether an override of the field, or of a field inside it, resolves a refusal."""
    return bool(cure) and any(name == cure or name.startswith(f"{cure}.") for name in answered)


def _with_overrides(draft: Draft, overrides: Sequence[str]) -> dict[str, Any]:
    """Applies overrides to the draft, and returns the draft as nested values."""
    for override in overrides:
        alone: dict[str, Any] = {}
        apply_override(alone, override)
        find_files(alone, Path.cwd())
        find_environment_files(alone, Path.cwd())
        for section, table in alone.items():
            if section in TABLES:
                draft.set(section, listed(table, [section]), Origin("--set", True))
                continue
            if not isinstance(table, Mapping):
                raise InvalidArgument(f"--set {override!r} is not of the form section.field=value")
            for key, value in table.items():
                name = f"{section}.{key}"
                if name in draft.explicit and draft.values.get(name) is not None:
                    draft.notes.append(f"--set {name} replaces what the source says: {draft.origins[name]}")
                changed = merged_values(draft.values.get(name), value, name)
                draft.set(name, listed(changed, [section, key]), Origin("--set", True))
    held_out = "evaluation.sources"
    given = {override.partition("=")[0].strip() for override in overrides}
    if "data.sources" in given and draft.values.get(held_out) and not any(name.startswith(held_out) for name in given):
        draft.notes.append(
            f"--set data.sources leaves {held_out} as the source says: {draft.origins[held_out]}; --set {held_out}=... "
            "changes it"
        )
    if draft.of_sources and isinstance(sources := draft.values.get("data.sources"), list):
        draft.values["data.sources"] = [_completed(table, draft.of_sources) for table in sources]
    return draft.nested()


def _completed(table: Any, common: Mapping[str, Any]) -> Any:
    """Returns a source of data with the common settings that the source does not set itself."""
    if not isinstance(table, Mapping):
        return table
    said = frozenset().union(*(same for same in _SAME if same & table.keys()))
    return {**{name: value for name, value in common.items() if name not in said}, **table}


def _header(system: System, title: str, translated: Translation, version: Version) -> list[str]:
    lines = [f"Translated from {system.name}{f': {title}' if title else ''} by `shoal config translate`."]
    if version.suffix:
        lines.append(f"Defaults are those of {system.name}{version.suffix}.")
    left_out = [each for each in translated.refusals if each.blocks and translated.leaves_out(each)]
    if left_out:
        lines += ["", "Incomplete. Left out on request:"]
        for refusal in left_out:
            lines += textwrap.wrap(
                str(refusal), 118, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
    return lines
