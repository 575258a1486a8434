"""Laws of every tool format: no exception, nothing lost, the same in every chunking, linear cost."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.parsing.tools.reading import parser_of, read, shown
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.elements.pieces import Content, ToolCallArguments, ToolCallStart
from tetrad.frontend.parsing.registry import TOOL_FORMATS, choose_format

NAMES = [each.name for each in TOOL_FORMATS]
# Formats in which there is nothing that parsers may skip, such as unknown keys of a JSON object.
LOSSLESS = {"qwen3_coder", "glm45", "minimax_m2", "deepseek_v3", "deepseek_v31", "openai"}
HELD = [each.name for each in TOOL_FORMATS if each.structural_tag([Tool("f")])]
WRAPPING = [each.name for each in TOOL_FORMATS if each.wraps_content]

JSON_CALL = '{"name": "f", "arguments": {"text": "a \\"}] 漢", "options": {"b": [1]}}}'
# An output of each format that goes through most of its states.
OUTPUTS = {
    "hermes": f"a\n<tool_call>\n{JSON_CALL}\n</tool_call>\n<tool_call>[{JSON_CALL}]</tool_call> b",
    "llama3_json": '{"type": "function", "name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}} <|python_tag|>x',
    "mistral": f'a[TOOL_CALLS] [{JSON_CALL}, {JSON_CALL}][TOOL_CALLS]f[CALL_ID]a1[ARGS]{{"a": 1}}',
    "granite": f"a<|tool_call|>[{JSON_CALL}, {JSON_CALL}] b",
    "phi4_mini_json": f"a functools[{JSON_CALL}] <|tool_call|>{JSON_CALL}<|/tool_call|>",
    "pythonic": "[f(text='a ]', count=1), g()]<|python_start|>[f(items=[\"x\"])]<|python_end|> b",
    "lfm2": "a<|tool_call_start|>[f(text='a ]', count=1), g()]<|tool_call_end|>",
    "qwen3_coder": (
        "a<tool_call>\n<function=f>\n<parameter=text>\nb\n</parameter>\n<parameter=count>\n12\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    "glm45": (
        "a<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>b</arg_value>\n<arg_key>count</arg_key><arg_value>1</arg_value>"
        "\n</tool_call>"
    ),
    "deepseek_v3": (
        "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
        '\n<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"text": "b"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "kimi_k2": (
        "a<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"text": "b"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "openai": (
        "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
        '<|message|>{"text": "b"}<|call|><|start|>assistant<|channel|>final<|message|>c <d>'
    ),
}
OUTPUTS["minimax_m2"] = (
    'a<minimax:tool_call>\n<invoke name="f">\n<parameter name="text">b</parameter>\n<parameter name="count">1</parameter>\n'
    '</invoke>\n<invoke name="g">\n</invoke>\n</minimax:tool_call> c'
)
OUTPUTS["deepseek_v4"] = (
    'a<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="text" string="true">b</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="count" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
)
OUTPUTS["deepseek_v32"] = OUTPUTS["deepseek_v4"].replace("tool_calls", "function_calls")
OUTPUTS["gemma4"] = (
    'a<|tool_call>call:f{count:1,flag:true,text:<|"|>a "} b<|"|>,items:[<|"|>x<|"|>,{<|"|>k<|"|>:null},[]]}<tool_call|> c'
)
OUTPUTS["functiongemma"] = "<start_function_call>call:f{text:<escape>b<escape>,count:5}<end_function_call>"
for name, opening, closing in (
    ("longcat", "<longcat_tool_call>", "</longcat_tool_call>"),
    ("internlm", "<|action_start|><|plugin|>", "<|action_end|>"),
    ("gigachat3", "function call<|role_sep|>", "<|function_call|>"),
    ("granite-20b-fc", "<function_call>", ""),
    ("jamba", "<tool_calls>", "</tool_calls>"),
    ("hunyuan_a13b", "<tool_calls>", "</tool_calls>"),
):
    OUTPUTS[name] = f"a\n{opening}\n{JSON_CALL}\n{closing}\n{opening}[{JSON_CALL}]{closing} b"
OUTPUTS["step3"] = (
    'a<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">\n'
    '<steptml:parameter name="count">1</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜> b'
)
OUTPUTS["olmo3"] = "a <function_calls>\nf(text='a ]', count=1)\ng(items=[\"x\"])\n</function_calls> b"
OUTPUTS["seed_oss"] = OUTPUTS["qwen3_coder"].replace("tool_call>", "seed:tool_call>")
OUTPUTS |= {"llama4_pythonic": OUTPUTS["pythonic"], "qwen3_xml": OUTPUTS["qwen3_coder"], "deepseek_v31": OUTPUTS["deepseek_v3"]}

for name, opening, inner, closing in (
    (
        "cohere_command3",
        "<|START_ACTION|>",
        '{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": [1]}}',
        "<|END_ACTION|>",
    ),
    ("apertus", "<|tools_prefix|>", '{"f": {"text": "a"}}', "<|tools_suffix|>"),
    ("xlam", "```json\n", JSON_CALL, "\n```"),
):
    OUTPUTS[name] = f"a\n{opening}[{inner}, {inner}]{closing}\n{opening}[{inner}]{closing} b"
OUTPUTS["hy_v3"] = (
    "a<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>count</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n</tool_calls> b"
)
OUTPUTS["solar_open2"] = (
    "a<|tool_call:start|>f\n<|tool_arg:start|>text<|tool_arg:value|>b<|tool_arg:end|>\n"
    "<|tool_arg:start|>count<|tool_arg:value|>1<|tool_arg:end|>\n<|tool_call:end|> c"
)
OUTPUTS["minicpm5"] = (
    'a<function name="f"><param name="text"><![CDATA[<b>]]></param>\n<param name="count">1</param></function> c'
)
OUTPUTS["minimax_m3"] = (
    'a]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<text>b]<]minimax[>[</text>'
    "]<]minimax[>[<items>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[</items>\n]<]minimax[>[</invoke>\n"
    "]<]minimax[>[</tool_call> c"
)
OUTPUTS["kimi_k3"] = (
    'a<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="text" type="string"<|sep|>b'
    '<|close|>argument<|sep|><|open|>argument key="count" type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|> c"
)
OUTPUTS["inkling"] = (
    "<|content_text|>a<|end_message|><|message_model|>f<|content_invoke_tool_json|>"
    '{"name": "f", "args": {"text": "b"}}<|end_message|><|message_model|><|content_text|>c <d><|content_model_end_sampling|>'
)
TOKENS = sorted({token for output in OUTPUTS.values() for token in output.replace("<", " <").replace(">", "> ").split(" ")})
WORDS = [
    *"{}[]()<>\"'\\:,;=|#",
    " ",
    "\n",
    '"name": "f"',
    '"arguments": ',
    "f(",
    "a=",
    "NaN",
    "1e999",
    "9" * 20,
    "\\ud800",
    "\x00",
    "😀",
    "§",
    "§§",
]
TEXTS = st.lists(st.sampled_from(TOKENS) | st.sampled_from(WORDS) | st.text(max_size=3), max_size=20)


@pytest.mark.parametrize("name", NAMES)
def test_output_cut_anywhere_means_the_same_in_every_chunking(name):
    output = OUTPUTS[name]

    for end in range(len(output)):
        cut = output[:end]
        whole = shown(read(parser_of(name), [cut]))
        assert shown(read(parser_of(name), cut)) == whole, cut


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(garbage=TEXTS, position=st.integers(0, 400))
def test_garbage_is_read_without_loss_and_the_same_in_every_chunking(name, garbage, position):
    chunks = [OUTPUTS[name][:position], *garbage, OUTPUTS[name][position:]]
    text = "".join(chunks)

    whole = shown(read(parser_of(name), [text]))

    assert shown(read(parser_of(name), text)) == whole
    assert shown(read(parser_of(name), chunks)) == whole
    content, calls = whole
    if not calls and name not in WRAPPING:
        assert content == text
    if name in LOSSLESS:
        assert sum(each.count("§") for each in (content, *(part for call in calls for part in call))) == text.count("§")


@pytest.mark.parametrize("name", HELD)
@settings(max_examples=40)
@given(garbage=TEXTS, position=st.integers(0, 400))
def test_output_without_a_trigger_has_no_strict_calls(name, garbage, position):
    """What never triggered the tag was not held to the schemas, so it must not count."""
    tools = [Tool("f", strict=True), Tool("g")]
    text = "".join([OUTPUTS[name][:position], *garbage, OUTPUTS[name][position:]])
    for trigger in choose_format(TOOL_FORMATS, name, "").structural_tag(tools)["triggers"]:
        text = text.replace(trigger, trigger[0] + "§" + trigger[1:])

    assert read(parser_of(name, tools), [text]).tool_calls == []


@pytest.mark.parametrize("name", NAMES)
def test_pieces_come_in_order_and_none_is_empty(name):
    parser, num_calls = parser_of(name), 0

    for piece in [piece for char in OUTPUTS[name] for piece in parser.feed(char)] + parser.finish():
        match piece:
            case ToolCallStart(index):
                assert index == num_calls
                num_calls += 1
            case ToolCallArguments(index, text):
                assert index == num_calls - 1 and text
            case Content(text):
                assert text


LONG = {
    "a long argument": ("hermes", '<tool_call>{"name": "f", "arguments": {"text": "', "a"),
    "a name that never ends": ("hermes", '<tool_call>{"name": "', "a"),
    "nesting that never ends": ("mistral", "[TOOL_CALLS]f[ARGS]{", '{"a":['),
    "bare nesting that never ends": ("gemma4", "<|tool_call>call:f{a:", "[{b:"),
    "white space that never ends": ("hermes", "", "\n"),
    "marks that begin and never end": ("openai", "", "<|"),
    "a long string parameter": ("qwen3_coder", "<tool_call><function=f><parameter=text>", "\n<"),
    "a call in Python that never ends": ("pythonic", "[f(text='", "a"),
    "malformed calls": ("pythonic", "[", "f(1),"),
    "elements that never end": ("minimax_m3", ']<]minimax[>[<invoke name="f">]<]minimax[>[<x>', "]<]minimax[>[<a>"),
    "many calls": ("llama3_json", "", '{"name": "f", "parameters": {}};'),
}


@pytest.mark.parametrize(("name", "beginning", "more"), LONG.values(), ids=LONG)
def test_cost_is_linear(name, beginning, more):
    """300 KB, character by character: copying what is held back for each would take many times as long."""
    parser = parser_of(name)
    text = beginning + more * (300_000 // len(more))

    started = time.process_time()
    for char in text:
        parser.feed(char)
    parser.finish()

    assert time.process_time() - started < 4
