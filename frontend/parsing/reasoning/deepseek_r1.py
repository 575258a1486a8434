"""DeepSeek R1, its distilled models, and V3.1: the model always reasons; <think> is often in the prompt or missing."""

from tetrad.frontend.parsing.reasoning.think import ThinkFormat

DEEPSEEK_R1 = ThinkFormat("deepseek_r1", "<｜Assistant｜>", always=True, ended_by=("<｜tool▁calls▁begin｜>",))
