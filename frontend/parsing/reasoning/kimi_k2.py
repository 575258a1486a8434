"""Kimi K2 Thinking: <think>; a tool call may end the reasoning without </think>."""

from tetrad.frontend.parsing.reasoning.think import ThinkFormat

KIMI_K2 = ThinkFormat("kimi_k2", "<|im_assistant|>", ended_by=("<|tool_calls_section_begin|>",), keeps_special_tokens=True)
