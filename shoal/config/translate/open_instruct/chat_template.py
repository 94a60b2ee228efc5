"""open-instruct's chat templates by name, and those of ours that write the same turns."""

from shoal.chat_templates import template_text
from shoal.config.translate.draft import Draft, Source

_OURS = {
    "tulu": "tulu",
    "tulu_thinker": "tulu_thinker",
    "simple_concat_with_new_line": "simple",
    "simple_concat_with_space": "simple_space",
    "r1_simple_chat_postpend_think": "r1_zero",
}
_IN_OUR_WORDS = ("r1_simple_chat_postpend_think",)
"""Their instructions are said in other words here."""

_WITHOUT_ONE = frozenset(
    (
        "assistant_message_only",
        "olmo",
        "olmo_old",
        "olmo_thinker",
        "olmo_thinker_code_rlzero",
        "olmo_thinker_no_think_7b",
        "olmo_thinker_no_think_sft_tokenization",
        "olmo_thinker_remove_intermediate_thinking",
        "olmo_thinker_rlzero",
        "qwen_instruct_user_boxed_math",
        "r1_simple_chat",
        "r1_simple_chat_postpend_think_orz_style",
        "r1_simple_chat_postpend_think_tool_vllm",
        "simple_chat",
        "tulu_thinker_r1_style",
        "zephyr",
    )
)
"""Other names that open-instruct knows."""

_FIELD = "model.chat_template"
_CURE = f"give its Jinja text, or the path of a file of it, with --set {_FIELD}=..."


def set_chat_template(source: Source, draft: Draft) -> None:
    """Sets `model.chat_template` from the template's name and the token that begins every prompt."""
    name, add_bos = source["chat_template_name"], source["add_bos"]
    if not name:
        if add_bos:
            reason = f"puts bos_token before the tokenizer's own chat template, whose text is not known here: {_CURE}"
            draft.refuse("add_bos", True, reason, cure=_FIELD)
        return
    ours = _OURS.get(name)
    if ours is None:
        reason = f"Shoal has no template that writes the same: {_CURE}"
        if name not in _WITHOUT_ONE:
            reason = (
                "open-instruct has no template of this name, as far as known, and silently takes the tokenizer's own: "
                f"leave it out to do the same, or {_CURE}"
            )
        draft.refuse("chat_template_name", name, reason, cure=_FIELD)
        return
    if name in _IN_OUR_WORDS:
        draft.notes.append(
            f"chat_template_name = {name}: the same turns and the same beginning of the answer; the instruction before "
            "them is in Shoal's own words"
        )
    names = ("chat_template_name", "add_bos") if add_bos else ("chat_template_name",)
    draft.set(_FIELD, "{{ bos_token }}" + template_text(ours) if add_bos else ours, source.origin(*names))
