"""Chat templates of the kinds that models have, short, for the byte vocabulary."""

from __future__ import annotations

__all__ = ["HERMES", "HERMES_TEXT_ARGUMENTS", "LLAMA", "MISTRAL", "NO_SYSTEM", "THINKING"]

HERMES = """\
{%- if tools %}<|im_start|>system
# Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HERMES_TEXT_ARGUMENTS = HERMES.replace(
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
    """{{ '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments + '}' }}""",
)
"""It joins the arguments to a text, and so wants them as text."""

THINKING = HERMES.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif think_open is defined %}<think>\n{% endif %}{% endif %}",
)

LLAMA = """\
{%- if tools %}<|im_start|>system
Respond with JSON {"name": function name, "parameters": dictionary}, maybe behind <|python_tag|>.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.tool_calls %}{"name": "{{ message.tool_calls[0].function.name }}", "parameters": \
{{ message.tool_calls[0].function.arguments | tojson }}}{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

MISTRAL = """\
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}[TOOL_CALLS][
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids must have 9 characters') }}{% endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
{%- endfor %}]<|im_end|>
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.tool_call_id }} {{ message.content }}[/TOOL_RESULTS]
{%- else %}[INST]{{ message.content }}[/INST]{% endif %}
{%- endfor %}"""

NO_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
