"""Reasoning parsers split an output into reasoning and content, in every chunking, for all starts of prompts and ends of
outputs.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tetrad.frontend.parsing.elements.pieces import AssistantTurn
from tetrad.frontend.parsing.registry import REASONING_FORMATS, choose_format

CHATML = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
R1 = "<｜User｜>hi<｜Assistant｜>"
GLM = "[gMASK]<sop><|user|>\nhi<|assistant|>"
KIMI = "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>"
SEED = "<seed:bos>user\nhi<seed:eos><seed:bos>assistant\n"
GEMMA = "<|turn>user\nhi<turn|>\n<|turn>model\n"
MISTRAL = "<s>[SYSTEM_PROMPT]First draft your thoughts: [THINK]here[/THINK].[/SYSTEM_PROMPT][INST]hi[/INST]"
COHERE = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
COHERE_THOUGHT = "<|START_THINKING|>well<|END_THINKING|>"
K3 = '<|open|>message role="assistant"<|sep|>'
K3_THINK, K3_ANSWER = "<|open|>think<|sep|>", "<|open|>response<|sep|>"
K3_END = "<|close|>response<|sep|>"
SOLAR = "<|im:start|>assistant<|im:content|><|think:start|>"
M2 = "]~b]ai\n<think>\n"
INKLING, THINKING, ANSWER = "<|message_model|>", "<|content_thinking|>", "<|content_text|>"
GRANITE = "Write your thoughts after 'Here is my thought process:'.<|start_of_role|>assistant<|end_of_role|>"
HARMONY = "<|start|>user<|message|>hi<|end|><|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
COMMENTARY = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
PYTHON = "<|channel|>analysis to=python code<|message|>1"
TURN = "<|start|>assistant"
TO_F = TURN + " to=functions.f"

# format, prompt, output, reasoning, the rest
CASES = [
    ("qwen3", CHATML, "<think>\nwell\n</think>\n\nyes", "well", "yes"),
    ("qwen3", CHATML, "\n<think>a\n\nb</think>c", "a\n\nb", "c"),
    ("qwen3", CHATML, "plain answer", "", "plain answer"),
    ("qwen3", CHATML, "\n\nplain <think>no</think>", "", "\n\nplain <think>no</think>"),
    ("qwen3", CHATML, "<think></think>yes", "", "yes"),
    ("qwen3", CHATML, "<think>\n\n</think>\n\n  yes\n", "", "  yes\n"),
    ("qwen3", CHATML, "<think>cut off\n", "cut off", ""),
    ("qwen3", CHATML, "<think>a < b </thin", "a < b </thin", ""),
    ("qwen3", CHATML, "<thin", "", "<thin"),
    ("qwen3", CHATML, "", "", ""),
    ("qwen3", CHATML, "<think>a</think>b</think>c<think>d", "a", "b</think>c<think>d"),
    ("qwen3", CHATML, "<think>call it\n<tool_call>{}</tool_call>", "call it", "<tool_call>{}</tool_call>"),
    ("qwen3", CHATML + "<think>\n", "well\n</think>\n\nyes", "well", "yes"),
    ("qwen3", CHATML + "<think>\n", "<think>\nwell</think>yes", "well", "yes"),
    ("qwen3", CHATML + "<think>\n\n</think>\n\n", "yes <think>", "", "yes <think>"),
    ("qwen3", CHATML + "<think>half a", " thought</think>yes", " thought", "yes"),
    ("qwen3", CHATML + "The answer", " is <think>x</think>", "", " is <think>x</think>"),
    ("qwen3", CHATML.replace("hi", "say <think>"), "yes", "", "yes"),
    ("qwen3", CHATML.replace("hi", "say </think>"), "<think>a</think>b", "a", "b"),
    ("qwen3", "some other template: <think>\n", "a</think>b", "a", "b"),
    ("qwen3", "some other template:", "<think>a</think>b", "a", "b"),
    ("deepseek_r1", R1 + "<think>\n", "well\n</think>\n\nyes", "well", "yes"),
    ("deepseek_r1", R1, "well</think>yes", "well", "yes"),
    ("deepseek_r1", R1, "<think>well</think>yes", "well", "yes"),
    ("deepseek_r1", R1, "never ends", "never ends", ""),
    ("deepseek_r1", R1 + "</think>", "yes", "", "yes"),
    ("deepseek_r1", R1, "go<｜tool▁calls▁begin｜>x", "go", "<｜tool▁calls▁begin｜>x"),
    ("deepseek_r1", R1, "go\n\n<｜DSML｜function_calls>x", "go", "<｜DSML｜function_calls>x"),
    ("glm45", GLM, "\n<think>well</think>\nyes", "well", "yes"),
    ("glm45", GLM + "\n<think></think>", "\nyes", "", "\nyes"),
    ("kimi_k2", KIMI, "<think>well</think>yes", "well", "yes"),
    ("kimi_k2", KIMI, "<think>go<|tool_calls_section_begin|>x", "go", "<|tool_calls_section_begin|>x"),
    ("kimi_k2", KIMI, "<think>go<|tool_call_section_begin|>x", "go", "<|tool_call_section_begin|>x"),
    ("minimax_m2", "]~b]user\nhi[e~[\n]~b]ai\n<think>\n", "well\n</think>\n\nyes", "well", "yes"),
    ("minimax_m2", "]~b]ai\n", "go\n<minimax:tool_call>x", "go", "<minimax:tool_call>x"),
    ("step3", "some template:", "well</think>\nyes", "well", "yes"),
    ("step3", "some template:<think>\n", "go<｜tool_calls_begin｜>x", "go", "<｜tool_calls_begin｜>x"),
    ("gemma4", GEMMA, "<|channel>thought\nwell\n<channel|>yes", "well", "yes"),
    ("gemma4", GEMMA, "<|channel>thought\n<channel|>yes", "", "yes"),
    ("gemma4", GEMMA, "<|channel>thought\ngo<|tool_call>call:f{}", "go", "<|tool_call>call:f{}"),
    ("gemma4", GEMMA + "<|channel>thought\n<channel|>", "yes", "", "yes"),
    ("seed_oss", SEED, "<seed:think>well</seed:think>yes", "well", "yes"),
    ("seed_oss", SEED + "<seed:think>", "</seed:think>yes", "", "yes"),
    ("seed_oss", SEED, "<seed:think>go<seed:tool_call>", "go", "<seed:tool_call>"),
    ("mistral", MISTRAL, "[THINK]well[/THINK]yes", "well", "yes"),
    ("mistral", MISTRAL, "[THINK]go[TOOL_CALLS]f[ARGS]{}", "go", "[TOOL_CALLS]f[ARGS]{}"),
    ("mistral", MISTRAL, "yes [THINK]", "", "yes [THINK]"),
    ("think", CHATML, "<think>😀 漢字</think>שלום", "😀 漢字", "שלום"),
    ("qwen3", CHATML, "\n</think>\n\nyes", "", "yes"),
    ("cohere_command3", COHERE, COHERE_THOUGHT + "<|START_RESPONSE|>yes<|END_RESPONSE|>", "well", "yes"),
    ("cohere_command3", COHERE, "<|START_RESPONSE|>yes\n", "", "yes\n"),
    ("cohere_command3", COHERE, COHERE_THOUGHT + "<|START_ACTION|>[]", "well", "<|START_ACTION|>[]"),
    ("cohere_command3", COHERE + "<|START_RESPONSE|>", "yes<|END_RESPONSE|>", "", "yes"),
    (
        "cohere_command3",
        COHERE,
        "<|START_THINKING|>a <co>b</co: 0:[1]><|END_THINKING|><|START_RESPONSE|>c <co>d</co: 0:[1,2],1:[3]>.<|END_RESPONSE|>",
        "a b",
        "c d.",
    ),
    ("cohere_command3", COHERE, "<|START_RESPONSE|>if a <b and </co: x> <co\n<|END_RESPONSE|>", "", "if a <b and </co: x> <co"),
    (
        "cohere_command3",
        COHERE,
        COHERE_THOUGHT + '<|START_ACTION|>["<co>a</co: 0:[]>"]<|END_ACTION|>',
        "well",
        '<|START_ACTION|>["<co>a</co: 0:[]>"]<|END_ACTION|>',
    ),
    ("cohere_command4", COHERE + "<|START_THINKING|>", "well<|END_THINKING|><|START_TEXT|>a<|END_TEXT|>", "well", "a"),
    ("cohere_command4", COHERE + "<|START_THINKING|>", "go<|START_ACTION|>[]", "go", "<|START_ACTION|>[]"),
    ("cohere_command4", COHERE + "<|START_THINKING|><|END_THINKING|>", "<|START_TEXT|>a<|END_TEXT|>", "", "a"),
    ("apertus", "<|assistant_start|>", "<|inner_prefix|>well<|inner_suffix|>yes", "well", "yes"),
    ("ernie45", "a prompt:", "well\n</think>\n\n<response>\nyes\n</response>\n", "well", "yes"),
    ("ernie45", "a prompt:", "well\n</think>\nyes", "well", "yes"),
    ("ernie45", "a prompt:", "well</think>\n\n\n<tool_call>x", "well", "<tool_call>x"),
    ("ernie45", "a prompt:", "well</think><response>a\n</response>\n<tool_call>x", "well", "a<tool_call>x"),
    ("hunyuan_a13b", "a prompt:", "<think>\nwell\n</think>\n<answer>\nyes\n</answer>", "well", "yes"),
    ("hunyuan_a13b", "a prompt:<think>\n\n</think>\n", "<answer>\nyes\n\n</answer>\n", "", "yes"),
    ("hunyuan_a13b", "a prompt:", "<answer>\nwrite </answer> there\n</answer>", "", "write </answer> there"),
    ("hunyuan_a13b", "a prompt:", "<answer>\nyes\n</ans", "", "yes\n</ans"),
    ("hunyuan_a13b", "a prompt:", "yes\n", "", "yes\n"),
    ("hy_v3", "a prompt:<think>", "go<tool_calls><tool_call>f", "go", "<tool_calls><tool_call>f"),
    ("kimi_k3", K3 + K3_THINK, "well<|close|>think<|sep|>" + K3_ANSWER + "yes" + K3_END, "well", "yes"),
    ("kimi_k3", K3 + K3_ANSWER, "yes" + K3_END + "<|close|>message<|sep|>", "", "yes"),
    ("kimi_k3", K3 + K3_ANSWER, "yes" + K3_END + "<|open|>tools<|sep|>x", "", "yes<|open|>tools<|sep|>x"),
    ("minimax_m3", "]~b]ai\n", "</mm:think>yes </mm:think>", "", "yes </mm:think>"),
    ("minimax_m3", "]~b]ai\n<mm:think>", "go]<]minimax[>[<tool_call>", "go", "]<]minimax[>[<tool_call>"),
    ("solar_open2", SOLAR, "well<|think:end|>yes", "well", "yes"),
    ("solar_open2", SOLAR, "go<|tool_call:start|>f", "go", "<|tool_call:start|>f"),
    ("solar_open2", SOLAR + "<|think:end|>", "yes", "", "yes"),
    ("minimax_m2_append_think", M2, "well\n</think>\n\nyes", "<think>well\n</think>", "\n\nyes"),
    ("minimax_m2_append_think", M2, "\n<think>go\n<minimax:tool_call>x", "\n<think>go\n", "<minimax:tool_call>x"),
    ("minimax_m2_append_think", M2, "", "", ""),
    ("minimax_m2_append_think", M2 + "</think>", "yes", "", "yes"),
    ("granite", GRANITE, "Here is my thought process: a\n\nHere is my response: b", "a", "b"),
    ("granite", GRANITE, "Here's my thought process:\na. Here\nHere's my response:\n\nb", "a. Here", "b"),
    ("granite", GRANITE, "Here is my thought process: a\nHere is my resp", "a\nHere is my resp", ""),
    ("granite", GRANITE, "Here is an answer.", "", "Here is an answer."),
    ("granite", GRANITE, "Here is", "", "Here is"),
    ("inkling", INKLING, THINKING + "well<|end_message|>" + INKLING + ANSWER + "yes", "well", INKLING + ANSWER + "yes"),
    ("inkling", INKLING, ANSWER + "yes", "", ANSWER + "yes"),
    ("inkling", INKLING + THINKING, "a<|end_message|>" + INKLING + THINKING + "b" + ANSWER + "c", "a\nb", ANSWER + "c"),
    ("inkling", INKLING + ANSWER, "yes", "", "yes"),
    ("inkling", INKLING, THINKING + "go<|content_invoke_tool_json|>{}", "go", "<|content_invoke_tool_json|>{}"),
    ("gpt_oss", HARMONY, ANALYSIS + "well<|end|>" + TURN + FINAL + "yes", "well", TURN + FINAL + "yes"),
    ("gpt_oss", HARMONY, FINAL + "yes", "", FINAL + "yes"),
    ("gpt_oss", HARMONY, ANALYSIS + "a<|end|>" + TURN + ANALYSIS + "b<|end|>" + TURN + FINAL + "c", "a\nb", TURN + FINAL + "c"),
    ("gpt_oss", HARMONY, ANALYSIS + "a<|end|>" + TURN + COMMENTARY, "a", TURN + COMMENTARY),
    ("gpt_oss", HARMONY, ANALYSIS + "a" + FINAL + "b", "a", FINAL + "b"),
    ("gpt_oss", HARMONY, ANALYSIS + "cut <|en", "cut <|en", ""),
    (
        "gpt_oss",
        HARMONY,
        "<|channel|>analysis to=python code<|message|>1",
        "",
        "<|channel|>analysis to=python code<|message|>1",
    ),
    ("gpt_oss", HARMONY, " to=functions.f" + ANALYSIS + "{}", "", " to=functions.f" + ANALYSIS + "{}"),
    ("gpt_oss", HARMONY, ANALYSIS + "a<|end|>" + TO_F + ANALYSIS + "{}", "a", TO_F + ANALYSIS + "{}"),
    ("gpt_oss", HARMONY, TO_F + "<|end|>" + TURN + ANALYSIS + "a", "a", TO_F + "<|end|>" + TURN),
    ("gpt_oss", HARMONY, "no marks", "", "no marks"),
    ("gpt_oss", HARMONY + ANALYSIS, "a<|end|>" + TURN + FINAL + "b", "a", TURN + FINAL + "b"),
    ("gpt_oss", HARMONY + FINAL, "b", "", FINAL + "b"),
]


def format_named(name):
    return choose_format(REASONING_FORMATS, name, "")


def read(name, prompt, chunks):
    parser, turn = format_named(name).parser(prompt), AssistantTurn()
    for chunk in chunks:
        turn.add(parser.feed(chunk))
    turn.add(parser.finish())
    assert turn.tool_calls == []
    return turn.reasoning, turn.content


@pytest.mark.parametrize(("name", "prompt", "output", "reasoning", "content"), CASES)
class TestEveryChunking:
    def test_whole(self, name, prompt, output, reasoning, content):
        assert read(name, prompt, [output]) == (reasoning, content)

    def test_split_in_every_place(self, name, prompt, output, reasoning, content):
        for place in range(len(output) + 1):
            assert read(name, prompt, [output[:place], output[place:]]) == (reasoning, content), place

    def test_character_by_character(self, name, prompt, output, reasoning, content):
        assert read(name, prompt, output) == (reasoning, content)

    def test_random_chunks(self, name, prompt, output, reasoning, content):
        dice = random.Random(output)
        for _ in range(20):
            cuts = sorted(dice.choices(range(len(output) + 1), k=4))
            chunks = [output[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
            assert read(name, prompt, chunks) == (reasoning, content)

    def test_cut_off_anywhere_never_shows_more_than_there_is(self, name, prompt, output, reasoning, content):
        for end in range(len(output)):
            cut = read(name, prompt, [output[:end]])
            assert cut == read(name, prompt, output[:end])


MARKS = [
    "<think>",
    "</think>",
    "\n",
    " ",
    "a",
    "Here is my",
    " thought process:",
    " response:",
    "<|channel|>",
    "analysis",
    "final",
]
MARKS += ["<|message|>", "<|end|>", "<|start|>assistant", "<tool_call>", "<", "é", "<|im_end|>"]
MARKS += sorted(
    {mark for each in REASONING_FORMATS for mark in (each.thinking.start, each.thinking.end)} - {"<think>", "</think>"}
)
MARKS += ["<answer>", "</answer>", "<response>", "</response>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_ACTION|>"]
GARBAGE = st.lists(st.sampled_from(MARKS) | st.text(max_size=5), max_size=12).map("".join)


@pytest.mark.parametrize("name", [each.name for each in REASONING_FORMATS])
@given(prompt=GARBAGE, output=GARBAGE, cuts=st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=60)
def test_garbage_in_any_chunking_is_read_alike(name, prompt, output, cuts):
    places = sorted(min(cut, len(output)) for cut in cuts)

    chunks = [output[a:b] for a, b in zip([0, *places], [*places, None], strict=True)]

    assert read(name, prompt, chunks) == read(name, prompt, [output])
    assert isinstance(format_named(name).is_over(prompt), bool)


@pytest.mark.parametrize(
    ("name", "prompt", "over"),
    [
        ("qwen3", CHATML, False),
        ("qwen3", CHATML + "<think>\n", False),
        ("qwen3", CHATML + "<think>\n\n</think>\n\n", True),
        ("qwen3", CHATML + "An answer", True),
        ("deepseek_r1", R1, False),
        ("deepseek_r1", R1 + "</think>", True),
        ("granite", GRANITE, False),
        ("granite", CHATML, True),
        ("inkling", INKLING, False),
        ("inkling", INKLING + ANSWER, True),
        ("gpt_oss", HARMONY, False),
        ("gpt_oss", HARMONY + ANALYSIS, False),
        ("gpt_oss", HARMONY + FINAL, True),
    ],
)
def test_the_prompt_says_whether_reasoning_can_follow(name, prompt, over):
    assert format_named(name).is_over(prompt) is over


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", CHATML, False),
        ("qwen3", CHATML + "<think>\n", True),
        ("qwen3", CHATML + "<think>\n\n</think>\n\n", False),
        ("qwen3", CHATML.replace("hi", "say <think>"), False),
        ("deepseek_r1", R1, True),
        ("deepseek_r1", R1 + "</think>", False),
        ("kimi_k2", KIMI, False),
        ("granite", GRANITE, False),
        ("inkling", INKLING, False),
        ("inkling", INKLING + THINKING, True),
        ("gpt_oss", HARMONY, False),
        ("gpt_oss", HARMONY + ANALYSIS, True),
        ("gpt_oss", HARMONY + FINAL, False),
    ],
)
def test_the_prompt_says_whether_the_reasoning_is_open(name, prompt, is_open):
    assert format_named(name).is_open(prompt) is is_open


@pytest.mark.parametrize(
    "reasoning_format", [each for each in REASONING_FORMATS if not each.is_content], ids=lambda each: each.name
)
def test_what_is_between_its_marks_is_reasoning(reasoning_format):
    parser, marks, turn = reasoning_format.parser(""), reasoning_format.thinking, AssistantTurn()

    turn.add(parser.feed(marks.start + "well" + marks.end) + parser.finish())

    assert (turn.reasoning, turn.content) == ("well", "")


@pytest.mark.parametrize(
    ("name", "prompt", "mark"),
    [
        ("qwen3", CHATML, "<tool_call>"),
        ("glm45", GLM, "<tool_call>"),
        ("kimi_k2", KIMI, "<|tool_calls_section_begin|>"),
        ("deepseek_r1", R1, "<｜tool▁calls▁begin｜>"),
    ],
)
def test_calls_end_no_reasoning_where_something_waits_for_its_end(name, prompt, mark):
    output = "<think>go " + mark + "{}</think>[]"

    for place in range(len(output) + 1):
        parser, turn = format_named(name).parser(prompt, calls_end_it=False), AssistantTurn()
        for pieces in (parser.feed(output[:place]), parser.feed(output[place:]), parser.finish()):
            turn.add(pieces)
        assert (turn.reasoning, turn.content) == ("go " + mark + "{}", "[]")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|im_start|>' }}{% if '</think>' in content %}", "qwen3"),
        ("<｜User｜> <｜Assistant｜> </think>", "deepseek_r1"),
        ("[gMASK]<sop> <|assistant|> <think></think>", "glm45"),
        ("<|im_assistant|>assistant<|im_middle|></think>", "kimi_k2"),
        ("<|start_of_role|> Here is my thought process: ", "granite"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "gpt_oss"),
        ("{%- set bos_token = '<seed:bos>' %} </seed:think>", "seed_oss"),
        ("{{ '[INST]' + message['content'] + '[/INST]' }} [THINK]...[/THINK]", "mistral"),
        ("]~b]ai </think>", "minimax_m2"),
        ("{{- '<|turn>' + role }} <|channel>thought<channel|>", "gemma4"),
        ("<｜tool_sep｜><steptml:invoke name= </think>", "step3"),
        ("<|START_RESPONSE|> <|END_THINKING|>", "cohere_command3"),
        ("<|START_TEXT|> <|END_THINKING|>", "cohere_command4"),
        ("<|assistant_start|><|inner_prefix|><|inner_suffix|> <|tools_prefix|>", "apertus"),
        ("<|im_start|> </think>\n\n<response>\n", "ernie45"),
        ("<|extra_0|> </think> <answer>", "hunyuan_a13b"),
        ("<|im_start|> <think>...</think> <answer>...</answer>", "qwen3"),
        ("</think> <tool_sep><arg_key>", "hy_v3"),
        ("</think:opensource> <tool_sep:opensource><arg_key:opensource>", "hy_v3"),
        ("]~b]ai ]<]minimax[>[ </mm:think>", "minimax_m3"),
        ("<|think:start|><|think:end|> <|tool_call:start|>", "solar_open2"),
        ("<|open|>think<|sep|><|close|>think<|sep|>", "kimi_k3"),
        ("<|message_model|><|content_thinking|>", "inkling"),
        ("<|turn|>assistant </think>", "think"),
        ("{{ '<|im_start|>' + message.content }}", None),
        ("", None),
    ],
)
def test_the_template_chooses_the_format(template, name):
    chosen = choose_format(REASONING_FORMATS, "auto", template)

    assert (chosen and chosen.name) == name


@pytest.mark.parametrize("name", [each.name for each in REASONING_FORMATS])
def test_a_mark_is_shown_as_soon_as_it_is_none(name):
    """What could still become a mark is held back, and nothing else."""
    parser = format_named(name).parser(R1 + "<think>")
    text = "A thought without any mark. "

    shown = sum(len(piece.text) for _ in range(50) for piece in parser.feed(text))

    assert shown >= 50 * len(text) - 30


@pytest.mark.parametrize(
    "output", ["<think>" + "\n" * 200_000, "<think>" + "<" * 200_000, " " * 200_000, "<think>" + "x" * 200_000]
)
def test_long_outputs_cost_their_length(output):
    """A quadratic parser would take minutes here."""
    reasoning, content = read("qwen3", CHATML, output)

    assert len(reasoning) + len(content) in (0, 200_000)


@pytest.mark.parametrize("prompt", ["a prompt:<think:opensource>", "a prompt:"])
def test_the_marks_of_released_models_of_hunyuan_have_a_suffix(prompt):
    parser = choose_format(REASONING_FORMATS, "hy_v3", "<tool_sep:opensource></think:opensource>").parser(prompt)
    start = "" if prompt.endswith(">") else "<think:opensource>"
    turn = AssistantTurn()

    turn.add(parser.feed(f"{start}a </think> b<tool_calls:opensource>x") + parser.finish())

    assert (turn.reasoning, turn.content) == ("a </think> b", "<tool_calls:opensource>x")
