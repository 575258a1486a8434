"""Think formats: the formats of families of models whose reasoning is between two marks."""

from tetrad.frontend.parsing.elements.interface import Marks
from tetrad.frontend.parsing.reasoning.answer import wrapped_answer
from tetrad.frontend.parsing.reasoning.citations import CitedText
from tetrad.frontend.parsing.reasoning.think import ThinkFormat

APERTUS = ThinkFormat(
    "apertus",
    "<|tools_prefix|>",
    ended_by=("<|tools_prefix|>",),
    keeps_special_tokens=True,
    marks=Marks("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Apertus: other marks, which are special tokens; `enable_thinking: true` asks for it."""
_COHERE = Marks("<|START_THINKING|>", "<|END_THINKING|>")
_COHERE_CALL = "<|START_ACTION|>"
COHERE_COMMAND3 = ThinkFormat(
    "cohere_command3",
    "<|START_RESPONSE|>",
    ended_by=(_COHERE_CALL,),
    keeps_special_tokens=True,
    marks=_COHERE,
    answer=wrapped_answer("<|START_RESPONSE|>", "<|END_RESPONSE|>", followers=(_COHERE_CALL,), text=CitedText),
    text=CitedText,
)
"""Command A: other marks, which are special tokens, also around the answer; `reasoning: true` asks for it. Marks of citations
are removed."""
COHERE_COMMAND4 = ThinkFormat(
    "cohere_command4",
    "<|START_TEXT|>",
    ended_by=(_COHERE_CALL,),
    keeps_special_tokens=True,
    marks=_COHERE,
    answer=wrapped_answer("<|START_TEXT|>", "<|END_TEXT|>", followers=(_COHERE_CALL,), text=CitedText),
    text=CitedText,
)
"""Command A+: the same with other marks of the answer; `reasoning: false` makes the prompt close it."""
DEEPSEEK_R1 = ThinkFormat(
    "deepseek_r1",
    "<｜Assistant｜>",
    always=True,
    ended_by=("<｜tool▁calls▁begin｜>", "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
)
"""DeepSeek R1, its distilled models, V3.1 and later: the model always reasons; <think> is often in the prompt or missing."""
GEMMA4 = ThinkFormat(
    "gemma4",
    "<|turn>",
    ended_by=("<|tool_call>",),
    keeps_special_tokens=True,
    marks=Marks("<|channel>thought\n", "<channel|>"),
)
"""Gemma 4: a channel; `enable_thinking: true` asks for it, and an empty one may come without."""
ERNIE45 = ThinkFormat(
    "ernie45",
    "<response>",
    always=True,
    ended_by=("<tool_call>",),
    keeps_special_tokens=True,
    answer=wrapped_answer("<response>", "</response>", followers=("<tool_call>",)),
)
"""ERNIE 4.5 Thinking: the model always reasons; tags around the answer."""
GLM45 = ThinkFormat("glm45", "<|assistant|>", ended_by=("<tool_call>",), keeps_special_tokens=True)
"""GLM 4.5 and later: <think> after the role; `enable_thinking: false` makes the prompt close it."""
HUNYUAN_A13B = ThinkFormat(
    "hunyuan_a13b", "<answer>", "<|extra_", answer=wrapped_answer("<answer>", "</answer>", followers=("<tool_calls>",))
)
"""Hunyuan A13B: tags around the answer; `enable_thinking: false` makes the prompt close the reasoning."""
HY_V3 = ThinkFormat("hy_v3", "<tool_sep>", ended_by=("<tool_calls>",), keeps_special_tokens=True)
"""Hunyuan 3: the prompt opens <think>, or closes it with `reasoning_effort: no_think`."""
HY_V3_SUFFIXED = ThinkFormat(
    "hy_v3",
    "<tool_sep:opensource>",
    ended_by=("<tool_calls:opensource>",),
    keeps_special_tokens=True,
    marks=Marks("<think:opensource>", "</think:opensource>"),
)
"""The released models of Hunyuan 3: a suffix in every mark."""
KIMI_K2 = ThinkFormat(
    "kimi_k2",
    "<|im_assistant|>",
    ended_by=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    keeps_special_tokens=True,
)
"""Kimi K2 Thinking: <think>; a tool call may end the reasoning without </think>."""
KIMI_K3 = ThinkFormat(
    "kimi_k3",
    "<|open|>think<|sep|>",
    ended_by=("<|open|>tools<|sep|>",),
    keeps_special_tokens=True,
    marks=Marks("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    answer=wrapped_answer(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        followers=("<|open|>tools<|sep|>",),
    ),
)
"""Kimi K3: marks of several special tokens, also around the answer; `thinking: false` makes the prompt open the answer."""
MINIMAX_M2 = ThinkFormat("minimax_m2", "]~b]ai", always=True, ended_by=("<minimax:tool_call>",), keeps_special_tokens=True)
"""MiniMax M2: the model always reasons; the prompt opens <think>."""
MINIMAX_M3 = ThinkFormat(
    "minimax_m3",
    "]<]minimax[>[",
    ended_by=("]<]minimax[>[<tool_call>",),
    keeps_special_tokens=True,
    marks=Marks("<mm:think>", "</mm:think>"),
)
"""MiniMax M3: other marks; with `thinking_mode: enabled` the prompt opens the reasoning."""
MISTRAL = ThinkFormat(
    "mistral", "[/INST]", ended_by=("[TOOL_CALLS]",), keeps_special_tokens=True, marks=Marks("[THINK]", "[/THINK]")
)
"""Magistral and Ministral: other marks, which are special tokens; a system message asks the model to reason."""
QWEN3 = ThinkFormat("qwen3", "<|im_start|>", ended_by=("<tool_call>",))
"""Qwen3 and QwQ: the model or the prompt opens <think>; `enable_thinking: false` makes the prompt close it."""
SEED_OSS = ThinkFormat(
    "seed_oss",
    "<seed:bos>",
    ended_by=("<seed:tool_call>",),
    keeps_special_tokens=True,
    marks=Marks("<seed:think>", "</seed:think>"),
)
"""Seed-OSS: other marks; `thinking_budget: 0` makes the prompt open the reasoning, and the model close it at once."""
SOLAR_OPEN2 = ThinkFormat(
    "solar_open2",
    "<|tool_call:start|>",
    ended_by=("<|tool_call:start|>",),
    keeps_special_tokens=True,
    marks=Marks("<|think:start|>", "<|think:end|>"),
)
"""Solar Open 2: other marks; the prompt opens the reasoning, or closes it with `reasoning_effort: low`."""
STEP3 = ThinkFormat("step3", "<steptml:", always=True, ended_by=("<｜tool_calls_begin｜>",), keeps_special_tokens=True)
"""Step 3: the model always reasons."""
THINK = ThinkFormat("think", keeps_special_tokens=True)
"""The format of any other model whose template has the marks."""

# In the order in which templates are tested: the more specific first.
THINK_FORMATS = (
    APERTUS,
    COHERE_COMMAND3,
    COHERE_COMMAND4,
    DEEPSEEK_R1,
    GEMMA4,
    ERNIE45,
    GLM45,
    HUNYUAN_A13B,
    HY_V3,
    HY_V3_SUFFIXED,
    KIMI_K2,
    KIMI_K3,
    MINIMAX_M2,
    MINIMAX_M3,
    MISTRAL,
    QWEN3,
    SEED_OSS,
    SOLAR_OPEN2,
    STEP3,
    THINK,
)
