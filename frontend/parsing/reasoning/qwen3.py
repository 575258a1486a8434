"""Qwen3 and QwQ: the model or the prompt opens <think>; `enable_thinking: false` makes the prompt close it."""

from tetrad.frontend.parsing.reasoning.think import ThinkFormat

QWEN3 = ThinkFormat("qwen3", "<|im_start|>", ended_by=("<tool_call>",))
