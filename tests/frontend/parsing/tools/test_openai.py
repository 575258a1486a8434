"""OpenAI's harmony, gpt-oss. Row: output, content, calls."""

import pytest

from tests.frontend.parsing.tools.reading import check_reading

NESTED = '{"options": {"a": [1, {"b": "}]"}], "q": "\\"{[\\\\"}, "text": "😀 漢字 <|call|> \\u00e9"}'
TURN = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>"
TO_F = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
OPENAI = {
    "plain text": ("Hello, it is = fine.", "Hello, it is = fine.", []),
    "an answer": (f"{FINAL}Hello <b>\n", "Hello <b>\n", []),
    "an answer with its end": (f"{FINAL}Hello<|return|>", "Hello", []),
    "a call": (f"{TO_F}{NESTED}<|call|>", "", [("f", NESTED)]),
    "no end": (f"{TO_F}{{}}", "", [("f", "{}")]),
    "recipient first": (f"{TURN} to=functions.f<|channel|>commentary json<|message|>{{}}<|call|>", "", [("f", "{}")]),
    "a header that the prompt has begun": (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "", [("f", "{}")]),
    "no type": ("<|channel|>commentary to=functions.f<|message|>{}", "", [("f", "{}")]),
    "no arguments": (f"{TO_F}<|call|>{TURN}{TO_F}", "", [("f", "{}"), ("f", "{}")]),
    "several calls": (f"{TO_F}{{}}<|call|>{TURN}{TO_F}{{}}<|call|>", "", [("f", "{}"), ("f", "{}")]),
    "a preamble and a call": (
        f"<|channel|>commentary<|message|>Let me see.<|end|>{TURN}{TO_F}{{}}<|call|>",
        "Let me see.",
        [("f", "{}")],
    ),
    "a preamble and an answer": (f"<|channel|>commentary<|message|>Well.<|end|>{TURN}{FINAL}Yes.", "Well.\nYes.", []),
    "a call and an answer": (f"{TO_F}{{}}<|call|>{TURN}{FINAL}Done.", "Done.", [("f", "{}")]),
    "a built-in": ("<|channel|>commentary to=browser.search code<|message|>{}<|call|>", "", [("browser.search", "{}")]),
    "arguments that are no JSON": (
        "<|channel|>commentary to=python code<|message|>print(1)<|call|>",
        "",
        [("python", "print(1)")],
    ),
    "analysis that nobody took": (f"<|channel|>analysis<|message|>Hm.<|end|>{TURN}{FINAL}Yes", "Hm.\nYes", []),
    "text behind the arguments": (f"{TO_F}{{}} so<|call|>", " so", [("f", "{}")]),
    "broken arguments": (f'{TO_F}{{"a": <|call|>{TURN}{FINAL}x', "x", [("f", '{"a": ')]),
    "what only looks like a header": ("<|channel|>no!\nheader", "<|channel|>no!\nheader", []),
    "no end between messages": (f"<|channel|>commentary<|message|>a{FINAL}b", "a\nb", []),
    "cut in a header": (f"<|channel|>commentary<|message|>a<|end|>{TURN}<|channel|>fin", "a", []),
    "cut before a header": (f"{FINAL}a<|end|>{TURN}", "a", []),
    "cut in a call": (f'{TO_F}{{"te', "", [("f", '{"te')]),
    "cut in a mark": (f"{FINAL}a <|ret", "a <|ret", []),
}


@pytest.mark.parametrize(("text", "content", "calls"), OPENAI.values(), ids=OPENAI)
def test_output_means_the_same_in_every_chunking(text, content, calls):
    check_reading("openai", text, content, calls)
