"""The choice of a format by a model's chat template, and the structural tags of strict tools."""

import json

import jsonschema
import pytest

from tests.frontend.parsing.tools.reading import read, shown
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.registry import ALIASES, REASONING_FORMATS, TOOL_FORMATS, choose_format
from tetrad.services.errors import InvalidRequest

# What is particular in the templates of these models.
TEMPLATES = {
    "Qwen 3": ("hermes", '<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>'),
    "Qwen 3 Coder": ("qwen3_coder", "<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>"),
    "Seed-OSS": ("seed_oss", "<seed:tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"),
    "GLM 4.6": ("glm45", "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>"),
    "Llama 3.1": ("llama3_json", '{"name": function name, "parameters": dictionary} {{- "<|python_tag|>" + tool_call.name }}'),
    "Llama 3.2": ("llama3_json", 'Respond in the format {"name": function name, "parameters": dictionary of argument name}'),
    "Llama 3.2, pythonic": (
        "pythonic",
        "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",
    ),
    "Llama 4": (
        "llama4_pythonic",
        "{{- '<|python_start|>' }} [func_name1(params_name1=params_value1)] {{- '<|python_end|>' }}",
    ),
    "LFM2": ("lfm2", '"List of tools: <|tool_list_start|>["'),
    "Mistral Small 3.1": ("mistral", '{{- "[AVAILABLE_TOOLS] [" }} {{- "[TOOL_CALLS] [" }}'),
    "DeepSeek V3": (
        "deepseek_v3",
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '\\n```json\\n'",
    ),
    "DeepSeek V3.1": ("deepseek_v31", "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>'"),
    "DeepSeek V3.2": ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="$FUNCTION_NAME">'),
    "DeepSeek V4": ("deepseek_v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="$TOOL_NAME">'),
    "MiniMax M2": ("minimax_m2", "{{- '\\n<minimax:tool_call>' }} <invoke name=\"tool-name-1\">"),
    "Gemma 4": ("gemma4", "{{- '<|tool_call>call:' + function['name'] + '{' -}}"),
    "FunctionGemma": ("functiongemma", "{{- '<start_function_call>call:' + function['name'] -}}"),
    "LongCat Flash": ("longcat", '<longcat_tool_call>\n{"name": <function-name>, "arguments": <args-dict>}'),
    "InternLM 2.5": ("internlm", "{{- '<|action_start|><|plugin|>\\n' }}"),
    "GigaChat 3": ("gigachat3", "'function call<|role_sep|>\\n'"),
    "Granite 20B": ("granite-20b-fc", "'<function_call> ' + tool_call"),
    "Hunyuan A13B": ("hunyuan_a13b", '<tool_calls>[{"name": "func_name1", "arguments": {}},...]</tool_calls>'),
    "Step 3": ("step3", "'<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=' + name"),
    "Olmo 3": ("olmo3", "respond with a pythonic function call wrapped in <function_calls></function_calls> XML tags"),
    "Kimi K2": ("kimi_k2", "<|im_system|>tool_declare<|im_middle|>"),
    "Kimi K3": ("kimi_k3", '<|open|>call tool="'),
    "Command A": ("cohere_command3", "<|START_ACTION|>[ <|START_RESPONSE|>"),
    "Apertus": ("apertus", "<|inner_prefix|> <|tools_prefix|>["),
    "xLAM 2": ("xlam", "When using tools, make calls in a single JSON array: <|python_tag|>"),
    "Hunyuan 3": ("hy_v3", "<tool_calls>\n<tool_call>' + name + '<tool_sep>\n<arg_key>"),
    "Hunyuan 3, released": ("hy_v3", "{%- set sep = '<tool_sep:opensource>' %} <arg_key:opensource>"),
    "Solar Open 2": ("solar_open2", "'<|tool_call:start|>' + name"),
    "MiniMax M3": ("minimax_m3", "]<]minimax[>[<tool_call>"),
    "MiniCPM 5": ("minicpm5", '<function name="\' + name + \'"><param name="'),
    "gpt-oss": ("openai", "<|start|>assistant<|channel|>final<|message|>"),
    "Inkling": ("inkling", "'<|message_model|>' + name + '<|content_invoke_tool_json|>'"),
    "Granite 3.3": ("granite", "<|start_of_role|>assistant<|end_of_role|><|tool_call|>"),
    "Granite 4": ("hermes", '<|start_of_role|><tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}'),
    "Phi-4-mini": ("phi4_mini_json", "'<|tool|>' + message['tools'] + '<|/tool|>'"),
    "no tools": (None, "{% for message in messages %}{{ '<|im_start|>' + message['role'] }}{% endfor %}"),
}

SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
TOOLS = [Tool("f", parameters=SCHEMA, strict=True), Tool("g", parameters=SCHEMA)]
NOT_HELD = {"pythonic", "llama4_pythonic", "lfm2", "qwen3_coder", "qwen3_xml", "seed_oss", "glm45", "kimi_k2", "openai"}
NOT_HELD |= {"inkling", "xlam", "hy_v3", "solar_open2", "minicpm5", "minimax_m3", "kimi_k3"}
NOT_HELD |= {"olmo3", "step3", "gemma4", "functiongemma", "minimax_m2", "deepseek_v32", "deepseek_v4"}
# Arrays of calls whose keys are unusual.
ARRAYS = {
    "cohere_command3": '[{"tool_call_id": "0", "tool_name": "f", "parameters": %s}]',
    "apertus": '[{"f": %s}]',
}
STRUCTURES = [
    pytest.param(each, structure, id=f"{each.name}-{index}")
    for each in TOOL_FORMATS
    for index, structure in enumerate((each.structural_tag(TOOLS) or {"structures": ()})["structures"])
]


@pytest.mark.parametrize(("name", "template"), TEMPLATES.values(), ids=TEMPLATES)
def test_template_tells_the_format(name, template):
    found = choose_format(TOOL_FORMATS, "auto", template)

    assert (found and found.name) == name


def test_names_are_unique():
    assert len({each.name for each in TOOL_FORMATS}) == len(TOOL_FORMATS)


@pytest.mark.parametrize(
    ("formats", "alias", "name"),
    [
        (TOOL_FORMATS, "glm47", "glm45"),
        (TOOL_FORMATS, "mimo", "qwen3_coder"),
        (REASONING_FORMATS, "mimo", "qwen3"),
        (TOOL_FORMATS, "cohere_command4", "cohere_command3"),
        (REASONING_FORMATS, "cohere_command4", "cohere_command4"),
        (TOOL_FORMATS, "deepseek_v3", "deepseek_v3"),
        (REASONING_FORMATS, "deepseek_v3", "think"),
    ],
)
def test_an_alias_means_a_format_of_the_same_list(formats, alias, name):
    assert choose_format(formats, alias, "").name == name


def test_the_template_chooses_among_formats_with_one_name():
    chosen = [
        choose_format(REASONING_FORMATS, "hy_v3", template) for template in ("", "<tool_sep:opensource></think:opensource>")
    ]

    assert [each.thinking.start for each in chosen] == ["<think>", "<think:opensource>"]


def test_an_alias_of_the_other_list_is_unknown_and_those_of_this_list_are_named():
    with pytest.raises(InvalidRequest, match=r"no parser 'granite4'.*glm47") as caught:
        choose_format(REASONING_FORMATS, "granite4", "")

    assert "llama4_json" not in str(caught.value)


def test_every_alias_means_formats_that_exist():
    names = {each.name for each in (*TOOL_FORMATS, *REASONING_FORMATS)}

    assert {meant for each in ALIASES.values() for meant in each} <= names


def test_formats_that_no_tag_can_hold_say_so():
    assert {each.name for each in TOOL_FORMATS if each.structural_tag(TOOLS) is None} == NOT_HELD


@pytest.mark.parametrize(("tool_format", "structure"), STRUCTURES)
def test_what_a_strict_tag_allows_is_read_as_a_call(tool_format, structure):
    is_array = structure["schema"]["type"] == "array"
    arguments = '{"count": 1}'
    value = ARRAYS.get(tool_format.name, '[{"name": "f", "arguments": %s}]') % arguments if is_array else arguments
    jsonschema.validate(json.loads(value), structure["schema"])

    turn = read(tool_format.parser(TOOLS), [structure["begin"] + value + structure["end"]])

    content, calls = shown(turn)
    assert content == ""
    assert len(calls) == 1
    assert calls[0][0] in ("f", "g")
    assert calls[0][1] == arguments


def test_tools_that_are_not_strict_take_any_object():
    structures = choose_format(TOOL_FORMATS, "hermes", "").structural_tag(TOOLS)["structures"]

    assert [each["schema"] for each in structures] == [SCHEMA, {"type": "object"}]


def test_llama_calls_of_strict_tools_count_only_if_a_trigger_has_held_them():
    text = '{ \t"name": "f", "parameters": {"count": 1}}'
    llama = choose_format(TOOL_FORMATS, "llama3_json", "")

    assert shown(read(llama.parser(TOOLS), [text])) == (text, [])
    assert shown(read(llama.parser([Tool("f")]), [text])) == ("", [("f", '{"count": 1}')])
