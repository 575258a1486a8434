"""GLM 4.5 and later: <think> after the role; `enable_thinking: false` makes the prompt close it."""

from tetrad.frontend.parsing.reasoning.think import ThinkFormat

GLM45 = ThinkFormat("glm45", "<|assistant|>", ended_by=("<tool_call>",), keeps_special_tokens=True)
