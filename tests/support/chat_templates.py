"""Small chat templates with the traits of families of models, and a tokenizer that knows their special tokens."""

from typing import Any

from tests.support.tiny_model import make_tokenizer

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

GEMMA_4 = """\
{%- for message in messages if message.role != "tool" %}
{{- "<|im_start|>" + message.role + "\\n" + message.content }}
{%- for call in message.tool_calls or [] %}
{{- "[" + call.function.name + "]" }}
{%- for result in messages if result.tool_call_id == call.id %}{{ result.content }}{% endfor %}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""
"""Writes results of tools only behind the calls that they answer, inside the policy's turn."""

GPT_OSS = """\
{%- for message in messages %}
{%- if message.role == "assistant" and message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{{- "<|im_start|>assistant analysis\\n" + message.content + "<|im_end|>" }}
{{- "<|im_start|>assistant to=" + call.name + "\\n" + (call.arguments | tojson) + "<|eot_id|>" }}
{%- elif message.role == "tool" %}
{{- "<|im_start|>" + message.name + " to=assistant\\n" + message.content + "<|im_end|>" }}
{%- else %}{{ "<|im_start|>" + message.role + "\\n" + message.content }}
{{- "<|endoftext|>" if message.role == "assistant" and loop.last else "<|im_end|>" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant" }}{% endif %}"""
"""Ends a turn with a call, an answer that others follow, and the last answer with a token each."""

GLM_4 = """\
{%- for message in messages %}
{{- "<|start_header_id|>" + message.role + "\\n" + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start_header_id|>assistant\\n" }}{% endif %}"""
"""Ends a turn with what begins the next one."""

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
    """Makes the tiny model's tokenizer with a chat template, and the special tokens of Llama 3."""
    tokenizer = make_tokenizer()
    headers = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>", *headers]})
    tokenizer.chat_template = template
    return tokenizer
