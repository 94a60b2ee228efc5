"""open-instruct's chat templates by name, with the templates of Shoal that write equal turns."""

from shoal.chat_templates import template_text
from shoal.translate.shared.draft import Checkout, Draft, Source

_OURS = {
    "tulu": "tulu",
    "tulu_thinker": "tulu_thinker",
    "tulu_thinker_r1_style": "tulu_r1",
    "zephyr": "zephyr",
    "simple_concat_with_new_line": "simple",
    "simple_concat_with_space": "simple_space",
    "simple_chat": "simple_chat",
    "r1_simple_chat": "r1_zero_plain",
    "r1_simple_chat_postpend_think": "r1_zero",
    "r1_simple_chat_postpend_think_orz_style": "r1_zero_boxed",
    "olmo_thinker_rlzero": "answer_line",
    "olmo_thinker_code_rlzero": "code_block",
}
_IN_OUR_WORDS = ("tulu_r1", "r1_zero", "r1_zero_plain", "r1_zero_boxed", "answer_line", "code_block")
"""Templates whose instructions have another wording in Shoal."""

_OLMO = (
    "Shoal lacks this template, since it begins every prompt with a system message that only Ai2's models know: leave "
    "chat_template_name out if the model's tokenizer has this template"
)
_WITHOUT_ONE = {
    **dict.fromkeys(
        (
            "olmo",
            "olmo_old",
            "olmo_thinker",
            "olmo_thinker_no_think_7b",
            "olmo_thinker_no_think_sft_tokenization",
            "olmo_thinker_remove_intermediate_thinking",
        ),
        _OLMO,
    ),
    "assistant_message_only": "this template writes only the assistant's messages, so a prompt would have no question",
    "qwen_instruct_user_boxed_math": "Shoal does not know its instruction: leave the field out if the data have one",
    "r1_simple_chat_postpend_think_tool_vllm": "Shoal does not know the template's instruction, which says how to call "
    "tools: leave chat_template_name out if the data say it",
}
"""Other names that open-instruct knows, with the reason why Shoal has no such template."""

_FIELD = "model.chat_template"
_CURE = f"give the template's Jinja text, or the path of a file with it, by --set {_FIELD}=..."
_WITH_CHECKOUT = "give a clone of open-instruct by --checkout DIR, to use its template"


def set_chat_template(source: Source, draft: Draft) -> None:
    """Sets `model.chat_template` from the name of the template and the flag for a leading token."""
    name, add_bos = source["chat_template_name"], source["add_bos"]
    if not name:
        if add_bos:
            reason = f"puts bos_token before the tokenizer's own chat template, and its text is unknown here: {_CURE}"
            draft.refuse("add_bos", True, reason, cure=_FIELD)
        return
    if source.checkout is not None:
        _set_from_checkout(name, source.checkout, source, draft)
        return
    ours = _OURS.get(name)
    if ours is None:
        reason = (
            f"{_WITHOUT_ONE[name]}; or {_WITH_CHECKOUT}; or {_CURE}"
            if name in _WITHOUT_ONE
            else (
                "Shoal knows no such template (for an unknown name, open-instruct silently uses the tokenizer's own): "
                f"{_WITH_CHECKOUT}; or leave chat_template_name out; or {_CURE}"
            )
        )
        draft.refuse("chat_template_name", name, reason, cure=_FIELD)
        return
    if ours in _IN_OUR_WORDS:
        draft.notes.append(
            f"chat_template_name = {name}: Shoal's template writes the same turns and begins the answer alike, "
            "but words the instruction differently; --checkout uses open-instruct's template"
        )
    _set(ours, template_text(ours), source, draft)


def _set_from_checkout(name: str, checkout: Checkout, source: Source, draft: Draft) -> None:
    """Sets the checkout's template. As in open-instruct, an unknown name means the tokenizer's own template."""
    if text := checkout.chat_templates.get(name):
        _set(text, text, source, draft)
    elif name in checkout.chat_templates:
        draft.refuse("chat_template_name", name, f"the checkout computes its text when it runs: {_CURE}", cure=_FIELD)
    elif source["add_bos"]:
        draft.refuse("add_bos", True, f"the checkout has no chat template {name!r}: {_CURE}", cure=_FIELD)
    else:
        draft.notes.append(
            f"chat_template_name = {name}: the checkout has no such template; open-instruct then uses the tokenizer's "
            "own, as this configuration does"
        )


def _set(template: str, text: str, source: Source, draft: Draft) -> None:
    """Sets a template, or its text after the token that begins a text."""
    if source["add_bos"]:
        draft.set(_FIELD, "{{ bos_token }}" + text, source.origin("chat_template_name", "add_bos"))
    else:
        draft.set(_FIELD, template, source.origin("chat_template_name"))
