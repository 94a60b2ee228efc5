"""Small chat templates with the traits of families of models, and a tokenizer that knows their special tokens."""

import re
from typing import Any

from tests.support.tiny_model import SPECIAL_TOKENS, make_tokenizer

_SPECIAL = re.compile(r'<\|(?:"\||[a-z_/]+\|?)>|<[a-z_]+\|>|<(?:start|end)_of_turn>')

QWEN = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content + "\\n" if messages[0].role == "system" else "" }}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set ns = namespace(query=0) %}
{%- for message in messages if message.role == "user" %}{% set ns.query = loop.index %}{% endfor %}
{%- set ns.users = 0 %}
{%- for message in messages %}
{%- if message.role == "user" %}{% set ns.users = ns.users + 1 %}{% endif %}
{%- if message.role == "user" or (message.role == "system" and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == "assistant" %}
{%- set content = message.content %}
{%- if "</think>" in content and ns.users < ns.query %}{% set content = content.split("</think>")[-1] %}{% endif %}
{{- "<|im_start|>assistant\\n" + content }}
{%- for call in message.tool_calls or [] %}
{{ "<tool_call>" + (call.function | tojson) + "</tool_call>" }}
{%- endfor %}<|im_end|>
{% elif message.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}<|im_start|>user{% endif %}
{{- "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<|im_end|>
{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
"""Results of tools in a row share one turn of the user, thoughts before the last question go, other roles too."""

QWEN_THINKING = """\
{%- set ns = namespace(query=0) %}
{%- for message in messages if message.role == "user" %}{% set ns.query = loop.index %}{% endfor %}
{%- set ns.users = 0 %}
{%- for message in messages %}
{%- if message.role == "assistant" %}
{%- set content = message.content %}
{%- set thought = "" %}
{%- if "</think>" in content %}
{%- set thought = content.split("</think>")[0].split("<think>")[-1].strip("\\n") %}
{%- set content = content.split("</think>")[-1].lstrip("\\n") %}
{%- endif %}
{{- "<|im_start|>assistant\\n" }}
{%- if ns.users == ns.query %}{{ "<think>\\n" + thought + "\\n</think>\\n\\n" }}{% endif %}
{{- content }}
{%- for call in message.tool_calls or [] %}
{{- "\\n<tool_call>\\n" }}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{{- "\\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- else %}
{%- if message.role == "user" %}{% set ns.users = ns.users + 1 %}{% endif %}
{{- "<|im_start|>" + ("user" if message.role == "tool" else message.role) + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n<think>\\n" }}{% endif %}"""
"""Begins each turn in a thought; keeps thoughts behind the last question alone."""

DEEPSEEK_R1 = """\
{%- for message in messages %}
{%- if message.role == "user" %}{{ "<|im_start|>User: " + message.content }}
{%- elif message.role == "tool" %}{{ "<|im_start|>Tool: " + message.content }}
{%- else %}{{ "<|im_start|>Assistant: " + message.content.split("</think>")[-1] + "<|im_end|>" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>Assistant: <think>\\n" }}{% endif %}"""
"""Begins each turn in a thought, and drops every thought of an earlier turn."""

QWEN_35 = QWEN_THINKING.replace(
    """\
{{- "\\n<tool_call>\\n" }}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{{- "\\n</tool_call>" }}
""",
    """\
{{- "\\n<tool_call>\\n<function=" + call.function.name + ">" }}
{%- for name, value in call.function.arguments.items() %}
{{- "\\n<parameter=" + name + ">\\n" + (value if value is string else value | tojson) + "\\n</parameter>" }}
{%- endfor %}
{{- "\\n</function>\\n</tool_call>" }}
""",
)
"""As `QWEN_THINKING`, with calls whose parameters are tags."""

LLAMA_3 = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception("one call at a time") }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + "}" }}
{%- else %}
{{- "<|start_header_id|>" + ("ipython" if message.role == "tool" else message.role) + "<|end_header_id|>\\n\\n" }}
{{- message.content | trim }}
{%- endif %}
{{- "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}{% endif %}"""
"""Trims every message, takes one call a turn, and writes its form in place of the content."""

OLMO_3 = """\
{%- for message in messages %}
{{- "<|im_start|>" + message.role + "\\n" + message.content }}
{%- if message.role == "assistant" and message.tool_calls %}
{{- "<function_calls>" }}
{%- for call in message.tool_calls %}{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() %}{{ name }}={{ value | tojson }}{% endfor %})
{% endfor %}
{{- "</function_calls>" }}
{%- endif %}
{{- eos_token if message.role == "assistant" and loop.last else "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""
"""Closes the last answer of a conversation with another token than earlier ones."""

HERMES = """\
{%- for message in messages %}
{{- "<|im_start|>" + message.role + "\\n" }}
{%- if message.role == "tool" %}{{ "<tool_response>\\n" + message.content + "\\n</tool_response>" }}
{%- else %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- "\\n<tool_call>\\n" }}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{{- "\\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""
"""Each result of a tool is a turn of its own."""

LLAMA_2 = """\
{{- bos_token }}
{%- for message in messages %}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif %}
{%- if message.role == "user" %}{{ "[INST] " + message.content + " [/INST]" }}
{%- else %}{{ " " + message.content + " " + eos_token }}{% endif %}
{%- endfor %}"""
"""A space before the end of a turn, nothing that begins an answer, and roles that must alternate."""

GEMMA_3 = """\
{%- set start = 1 if messages[0].role == "system" else 0 %}
{%- for message in messages[start:] %}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif %}
{{- "<start_of_turn>" + ("model" if message.role == "assistant" else message.role) + "\\n" }}
{%- if loop.first and start %}{{ messages[0].content + "\\n\\n" }}{% endif %}
{{- message.content | trim + "<end_of_turn>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<start_of_turn>model\\n" }}{% endif %}"""
"""Has no role for tools, writes no calls, and puts the system's words in front of the user's."""

GEMMA_4 = """\
{%- set ns = namespace(role="", results=0) %}
{%- for message in messages if message.role != "tool" %}
{%- if not (message.role == "assistant" and ns.role == "assistant") %}
{{- "<|turn>" + ("model" if message.role == "assistant" else message.role) + "\\n" }}
{%- endif %}
{%- set ns.results = 0 %}
{%- for call in message.tool_calls or [] %}
{{- "<|tool_call>call:" + call.function.name + "{" }}
{%- for name, value in call.function.arguments | dictsort %}
{{- "" if loop.first else "," }}{{ name }}:{{ '<|"|>' + value + '<|"|>' if value is string else value }}
{%- endfor %}
{{- "}<tool_call|>" }}
{%- endfor %}
{%- for call in message.tool_calls or [] %}
{%- for result in messages if result.tool_call_id == call.id %}
{{- "<|tool_response>response:" + call.function.name + '{value:<|"|>' + result.content + '<|"|>}<tool_response|>' }}
{%- set ns.results = ns.results + 1 %}
{%- endfor %}
{%- endfor %}
{{- message.content | trim }}
{%- if message.tool_calls and not ns.results %}{{ "<|tool_response>" }}
{%- elif message.content or not ns.results %}{{ "<turn|>\\n" }}{% endif %}
{%- set ns.role = message.role %}
{%- endfor %}
{%- if add_generation_prompt and not ns.results %}{{ "<|turn>model\\n" }}{% endif %}"""
"""Writes results of tools inside the policy's turn, behind a token that ends calls, and before the turn's content."""

GPT_OSS = """\
{%- set ns = namespace(name="") %}
{%- for message in messages %}
{%- if message.role == "assistant" and message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{%- set ns.name = call.name %}
{%- if message.content %}
{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
{%- endif %}
{{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
{{- (call.arguments | tojson) + "<|call|>" }}
{%- elif message.role == "tool" %}
{{- "<|start|>functions." + ns.name + " to=assistant<|channel|>commentary<|message|>" }}
{{- (message.content | tojson) + "<|end|>" }}
{%- elif message.role == "assistant" %}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content }}
{{- "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" }}
{%- else %}{{ "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif %}"""
"""Ends a call, a part of a turn, and the last answer with a token each, and takes one call a turn."""

GLM_4 = """\
[gMASK]<sop>
{%- set ns = namespace(query=-1) %}
{%- for message in messages if message.role == "user" %}{% set ns.query = loop.index0 %}{% endfor %}
{%- for message in messages %}
{%- if message.role == "assistant" %}{{ "<|assistant|>\\n" + message.content }}
{%- for call in message.tool_calls or [] %}
{{- "\\n<tool_call>" + call.function.name }}
{%- for name, value in call.function.arguments.items() %}
{{- "\\n<arg_key>" + name + "</arg_key>\\n<arg_value>" + (value if value is string else value | tojson) }}
{{- "</arg_value>" }}
{%- endfor %}
{{- "\\n</tool_call>" }}
{%- endfor %}
{%- elif message.role == "tool" %}
{{- "<|observation|>" if loop.first or messages[loop.index0 - 1].role != "tool" }}
{{- "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" }}
{%- else %}{{ "<|" + message.role + "|>\\n" + message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|assistant|>\\n" }}{% endif %}"""
"""Ends a turn with the token of the role that speaks next."""

PHI_4_MINI = """\
{%- for message in messages %}
{%- if message.role == "tool" %}{{ "<|tool_response|>" + (message.content | tojson) + "<|end|>" }}
{%- else %}
{{- "<|" + message.role + "|>" + message.content }}
{%- if message.role == "system" %}
{%- for tool in tools or [] %}{{ "<|tool|>" + (tool.function | tojson) + "<|/tool|>" }}{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- "<|tool_call|>" + (call.function | tojson) + "<|/tool_call|>" }}
{%- endfor %}
{{- "<|end|>" }}
{%- endif %}
{%- endfor %}
{{- "<|assistant|>" if add_generation_prompt else eos_token }}"""
"""Ends a text that begins no turn with the end of the sequence."""

DEEPSEEK = """\
{%- for message in messages %}
{%- if message.role == "user" %}{{ "<|im_start|>User: " + message.content }}
{%- elif message.role == "tool" %}{{ "<|im_start|>Tool: " + message.content }}
{%- else %}{{ "<|im_start|>Assistant: " + message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.name + ":" + call.function.arguments }}{% endfor %}
{{- "<|im_end|>" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>Assistant: " }}{% endif %}"""
"""Takes the arguments of a call as text alone."""


def tokenizer_with(template: str) -> Any:
    """Makes the tiny model's tokenizer with a chat template, and the special tokens that the template writes."""
    tokenizer = make_tokenizer()
    headers = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    roles = ["<|user|>", "<|assistant|>", "<|system|>"] if '"<|" + message.role' in template else []
    written = sorted({*_SPECIAL.findall(template), *roles} - {*headers, *SPECIAL_TOKENS})
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>", *headers, *written]})
    tokenizer.chat_template = template
    return tokenizer
