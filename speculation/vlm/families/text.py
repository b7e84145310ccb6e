"""Language models alone: Llama and Vicuna, Mistral, Qwen2, Qwen3. Prompts have no image, all else is the same."""

from __future__ import annotations

from typing import ClassVar

from speculation.vlm.families.family import Family

VICUNA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}A chat between a curious "
    "user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the "
    "user's questions.{% endif %} {% for message in messages %}{% if message.role == 'user' %}"
    "USER: {{ message.content }} {% elif message.role == 'assistant' %}"
    "ASSISTANT: {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
"""Vicuna's conversation (FastChat's vicuna_v1.1), which its checkpoints do not carry in their own folders."""


class Text(Family):
    """A decoder without eyes."""

    classes: ClassVar[dict[str, str]] = {
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
    }


class Llama(Text):
    """Llama, which Vicuna's checkpoints are, too."""

    classes: ClassVar[dict[str, str]] = {"llama": "LlamaForCausalLM"}
    template = VICUNA_TEMPLATE
