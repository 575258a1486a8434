"""The table of bad input: the wrong value, the APIs that can express it, and the expected error. Data only.

A row that several APIs can express has the same answer in all of them: the same reason, field and text.
"""

from dataclasses import dataclass, field
from typing import Any

MAX_LEN = 8192
VOCAB = 49152
HTTP, GRPC, PYTHON = "http", "grpc", "python"
ALL = (HTTP, GRPC, PYTHON)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Row:
    """One wrong request.

    Attributes:
        name: of the test.
        reason: part of the message.
        param: the field at fault, as errors name it.
        status: of the HTTP response.
        apis: where it can be said.
        params: sampling parameters, by SamplingParams' names.
        prompt: of a completion.
        messages: of a chat; the row is about a chat if there are any.
        options: of the chat: chat_template, tools and the like, as HTTP names them.
        model: asked for.
        path, fields, content, headers: of the HTTP request, if it is more than the above; `content` goes as it is.
    """

    name: str
    reason: str
    param: str | None = None
    status: int = 400
    apis: tuple[str, ...] = ALL
    params: dict[str, Any] = field(default_factory=dict)
    prompt: Any = "Hello"
    messages: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    path: str = COMPLETIONS
    fields: dict[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def sampling(reason: str, apis: tuple[str, ...] = ALL, param: str | None = None, **params: Any) -> Row:
    """A wrong sampling parameter; the last one given is at fault."""
    name = param or list(params)[-1]
    return Row(f"{name}={str(params[name])[:24]}", reason, name, apis=apis, params=params)


def structured(reason: str, apis: tuple[str, ...] = ALL, **constraint: Any) -> Row:
    """A constraint on the output that cannot be."""
    name = f"structured:{','.join(constraint)}={str(next(iter(constraint.values()), ''))[:16]}"
    return Row(name, reason, "structured_outputs", apis=apis, params={"structured_outputs": constraint})


def prompt(name: str, value: Any, reason: str, apis: tuple[str, ...] = ALL, **more: Any) -> Row:
    """A prompt that is none."""
    return Row(f"prompt:{name}", reason, "prompt", apis=apis, prompt=value, **more)


def chat(name: str, messages: Any, reason: str, param: str | None, apis: tuple[str, ...] = ALL, **options: Any) -> Row:
    """A conversation that is none."""
    return Row(f"chat:{name}", reason, param, apis=apis, messages=messages, options=options)


def http(name: str, reason: str, param: str | None = None, **more: Any) -> Row:
    """What only HTTP can say."""
    return Row(name, reason, param, apis=(HTTP,), **more)


def remote(name: str, reason: str, param: str | None = None, **more: Any) -> Row:
    """What only a client of a server can say."""
    return Row(name, reason, param, apis=(HTTP, GRPC), **more)


NO_GRPC = (HTTP, PYTHON)  # protobuf's types cannot hold it
NO_PYTHON = (HTTP, GRPC)
USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "g"}}
JSON_ONLY = {"structured_outputs": {"json_object": True}}

SAMPLING = (
    sampling("n must be at least 1, got 0.", n=0),
    sampling("n must be at least 1, got -3.", NO_GRPC, n=-3),
    sampling("n must be at most 1024, got 1025.", n=1025),
    sampling("n must be at most 16384, got 16385.", n=16385),
    sampling("n must be an integer, got 1.5.", NO_GRPC, n=1.5),
    sampling("n must be an integer, got True.", NO_GRPC, n=True),
    sampling("temperature must be non-negative, got -0.5.", temperature=-0.5),
    sampling("temperature must be in [0, 2], got 2.5.", temperature=2.5),
    sampling("temperature must be a number, got 'hot'.", NO_GRPC, temperature="hot"),
    sampling("temperature must be in [0, 2], got inf.", (GRPC, PYTHON), temperature=float("inf")),
    sampling("temperature must be in [0, 2], got nan.", (GRPC, PYTHON), temperature=float("nan")),
    sampling("top_p must be in (0, 1], got 0.0.", top_p=0.0),
    sampling("top_p must be in (0, 1], got 1.5.", top_p=1.5),
    sampling("top_p must be in (0, 1], got -0.5.", top_p=-0.5),
    sampling("top_k must be 0 (disable), or at least 1, got -2.", top_k=-2),
    sampling("top_k must be an integer, got 0.5.", NO_GRPC, top_k=0.5),
    sampling("min_p must be in [0, 1], got -0.5.", min_p=-0.5),
    sampling("min_p must be in [0, 1], got 1.5.", min_p=1.5),
    sampling("presence_penalty must be in [-2, 2], got 2.5.", presence_penalty=2.5),
    sampling("presence_penalty must be in [-2, 2], got -2.5.", presence_penalty=-2.5),
    sampling("frequency_penalty must be in [-2, 2], got 2.5.", frequency_penalty=2.5),
    sampling("frequency_penalty must be in [-2, 2], got -2.5.", frequency_penalty=-2.5),
    sampling("repetition_penalty must be greater than zero, got 0.0.", repetition_penalty=0.0),
    sampling("repetition_penalty must be greater than zero, got -1.5.", repetition_penalty=-1.5),
    sampling("repetition_penalty must be a finite number, got inf.", (GRPC, PYTHON), repetition_penalty=float("inf")),
    sampling("max_tokens must be at least 1, got 0.", max_tokens=0),
    sampling("max_tokens must be at least 1, got -1.", NO_GRPC, max_tokens=-1),
    sampling("max_tokens must be an integer, got 'many'.", NO_GRPC, max_tokens="many"),
    sampling("min_tokens must be greater than or equal to 0, got -1.", NO_GRPC, min_tokens=-1),
    sampling("min_tokens must be less than or equal to max_tokens=4, got 5.", max_tokens=4, min_tokens=5),
    sampling("thinking_token_budget is set but this model has no reasoning parser.", thinking_token_budget=5),
    sampling("Requested sample logprobs of 21, which is greater than max allowed: 20", logprobs=21),
    sampling("logprobs must be non-negative or -1, got -2.", logprobs=-2),
    sampling(f"Requested sample logprobs of {VOCAB}, which is greater than max allowed: 20", logprobs=-1),
    sampling("Requested prompt logprobs of 21, which is greater than max allowed: 20", prompt_logprobs=21),
    sampling("prompt_logprobs must be non-negative or -1, got -2.", prompt_logprobs=-2),
    sampling("seed must fit 64 bits, got 9223372036854775808.", NO_GRPC, seed=2**63),
    sampling("stop cannot contain an empty string.", stop=[""]),
    sampling("stop cannot contain an empty string.", NO_GRPC, stop=""),
    sampling("stop may hold at most 4 strings, got 5.", stop=["a"] * 5),
    sampling("A stop string may have at most 1024 characters, got 1025.", stop=["a" * 1025]),
    sampling("stop must contain only strings, got 5.", NO_GRPC, stop=["a", 5]),
    sampling("stop_token_ids must contain only integers, got 'x'.", NO_GRPC, stop_token_ids=["x"]),
    sampling(f"token_id(s) [{VOCAB}] in stop_token_ids contain out-of-vocab token ids.", stop_token_ids=[VOCAB]),
    sampling("token_id(s) [-1] in stop_token_ids contain out-of-vocab token ids.", NO_GRPC, stop_token_ids=[-1]),
    sampling("bad_words cannot contain an empty string.", bad_words=["x", ""]),
    sampling("bad_words may hold at most 128 words, got 129.", bad_words=["x"] * 129),
    sampling("allowed_token_ids is not None and empty!", allowed_token_ids=[]),
    sampling("allowed_token_ids", allowed_token_ids=[1, VOCAB + 7]),
    sampling(f"token_id(s) [{VOCAB}] in logit_bias contain out-of-vocab token ids.", logit_bias={VOCAB: 1.0}),
    sampling("logit_bias must map token ids to numbers, got the key 'x'.", NO_GRPC, logit_bias={"x": 1.0}),
    sampling("logprob_token_ids may hold at most 128 ids, got 129.", logprob_token_ids=list(range(129))),
    sampling("repetition_detection", NO_GRPC, repetition_detection={"max_pattern_size": -1}),
    sampling(
        "repetition_detection.min_count must be at least 2, got 1.",
        repetition_detection={"max_pattern_size": 4, "min_count": 1},
    ),
    sampling("stream_interval must be at least 1, got 0.", stream_interval=0),
)

STRUCTURED = (
    structured("You can only use one kind of structured outputs constraint", NO_GRPC, regex="a", choice=["b"]),
    structured("You must use one kind of structured outputs constraint"),
    structured("structured_outputs.choice cannot be empty, got [].", choice=[]),
    structured("structured_outputs.regex cannot be empty, got ''.", regex=""),
    structured("structured_outputs.grammar cannot be empty, got ''.", grammar=""),
    structured("structured_outputs.json_object cannot be empty, got False.", json_object=False),
    structured("structured_outputs.regex cannot contain a NUL character.", regex="a\0"),
    structured("structured_outputs.json is not valid JSON", json="{"),
    structured("json_schema cannot be used: Invalid type: nonsense.", json='{"type": "nonsense"}'),
    structured("json_schema cannot be used: properties must be an object.", json='{"type": "object", "properties": []}'),
    structured("json_schema cannot be used: regex parse error", json='{"type": "string", "pattern": "("}'),
    structured("json_schema cannot be used: Pointer '/$defs/missing' does not exist.", json='{"$ref": "#/$defs/missing"}'),
    structured("regex cannot be used", regex="("),
    structured("regex cannot be used", regex="a{5,1}"),
    structured('unknown name: "missing".', grammar="start: missing"),
    structured("The grammar is neither Lark", grammar="]["),
    structured("format of structural_tag must be an object", structural_tag="{}"),
    structured("The structural tag is not valid JSON", structural_tag="not JSON"),
    structured("structured_outputs.json is nested deeper than 64 levels.", json='{"a":' * 70 + "1" + "}" * 70),
)

PROMPTS = (
    prompt("empty text", "", "The decoder prompt cannot be empty"),
    prompt("no ids", [], "The decoder prompt cannot be empty"),
    prompt(
        "as long as the context",
        [5] * MAX_LEN,
        f"maximum context length is {MAX_LEN} tokens. However, you requested {MAX_LEN + 1} tokens",
    ),
    prompt(
        "longer than the context",
        [5] * (MAX_LEN + 1),
        f"maximum context length is {MAX_LEN} tokens. However, you requested {MAX_LEN + 2} tokens",
    ),
    prompt("unknown id", [1, VOCAB], f"Token id {VOCAB} in the prompt is out of vocabulary. Vocabulary size: {VOCAB}"),
    prompt("negative id", [-1], "Token id -1 in the prompt is out of vocabulary.", NO_GRPC),
    prompt("ten million characters", "word " * 2_000_000, "(the prompt has 10000000 characters, but at most"),
    Row(
        "cache_salt", "cache_salt must have at most 128 characters", "cache_salt", apis=NO_PYTHON, fields={"cache_salt": "a/b"}
    ),
    Row("long cache_salt", "cache_salt must have at most 128", "cache_salt", apis=NO_PYTHON, fields={"cache_salt": "a" * 129}),
    Row("unknown model", "The model `nope` does not exist.", "model", 404, apis=NO_PYTHON, model="nope"),
)

CHATS = (
    chat("no messages", [], "messages cannot be empty", "messages", (HTTP, GRPC)),
    chat("unknown role", [{"role": "wizard", "content": "x"}], "has the unknown role 'wizard'", "messages[0].role"),
    chat(
        "second role unknown", [USER, {"role": "", "content": "x"}], "messages[1] has the unknown role ''", "messages[1].role"
    ),
    chat(
        "image",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "parts of type 'image_url' are not supported by this model, only text.",
        "messages[0].content",
        NO_GRPC,
    ),
    chat(
        "part without text",
        [{"role": "user", "content": [{"type": "text"}]}],
        "messages[0].content",
        "messages[0].content",
        NO_GRPC,
    ),
    chat(
        "call without a name",
        [USER, {"role": "assistant", "tool_calls": [{"id": "1", "function": {}}]}],
        "messages[1].tool_calls[0] must be",
        "messages[1].tool_calls[0]",
    ),
    chat(
        "arguments that are no object",
        [USER, {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": [1]}}]}],
        "messages[1].tool_calls[0].function.arguments must be a JSON object or its text, got list.",
        "messages[1].tool_calls[0].function.arguments",
        NO_GRPC,
    ),
    chat("part of no kind", [{"role": "user", "content": [{}]}], "parts of type None", "messages[0].content"),
    chat(
        "documents that are no list",
        [USER],
        "documents must be a list, got {'a': 1}.",
        "documents",
        NO_PYTHON,
        documents={"a": 1},
    ),
    chat(
        "variables that are no object",
        [USER],
        "chat_template_kwargs must be an object, got [1].",
        "chat_template_kwargs",
        NO_PYTHON,
        chat_template_kwargs=[1],
    ),
    chat("unknown effort", [USER], "reasoning_effort", "reasoning_effort", NO_PYTHON, reasoning_effort="huge"),
    chat(
        "both ways to end a prompt",
        [USER],
        "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        "continue_final_message",
        continue_final_message=True,
        add_generation_prompt=True,
    ),
    chat("template that is no Jinja", [USER], "The chat template is not valid", "chat_template", chat_template="{% if %}"),
    chat("template that refuses", [USER], "not today", "chat_template", chat_template="{{ raise_exception('not today') }}"),
    chat("too long", [{"role": "user", "content": "word " * 9000}], "This model's maximum context length is", "prompt"),
)

TOOLS = (
    chat(
        "tool_choice without tools",
        [USER],
        "When using `tool_choice`, `tools` must be set.",
        None,
        NO_PYTHON,
        tool_choice="auto",
    ),
    http("tool_choice of no kind", "tool_choice", "tool_choice", path=CHAT, fields={"tool_choice": "maybe", "tools": [TOOL]}),
    chat(
        "tool_choice of an unknown tool",
        [USER],
        "The tool 'g' specified in `tool_choice` does not match any of the specified `tools`: f.",
        "tool_choice",
        NO_PYTHON,
        tools=[TOOL],
        tool_choice=OTHER,
    ),
    chat(
        "only unknown tools allowed",
        [USER],
        "The tool 'g' in `tool_choice.allowed_tools` does not match any",
        "tool_choice",
        NO_PYTHON,
        tools=[TOOL],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}},
    ),
    Row(
        "a call and a form at once",
        "tool_choice `required` cannot be combined with structured_outputs: an output has one form.",
        "tool_choice",
        apis=NO_PYTHON,
        messages=[USER],
        options={"tools": [TOOL], "tool_choice": "required"},
        params=JSON_ONLY,
    ),
    chat(
        "schema of a tool that is none",
        [USER],
        "json_schema cannot be used: Invalid type: nonsense.",
        "tools",
        NO_PYTHON,
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "nonsense"}}}}}],
        tool_choice="required",
    ),
    chat(
        "parameters that are no object",
        [USER],
        "tools.0.function.parameters must be an object, got [1].",
        "tools.0.function.parameters",
        NO_PYTHON,
        tools=[{"type": "function", "function": {"name": "f", "parameters": [1]}}],
    ),
    chat(
        "name of a tool",
        [USER],
        "tools.0.function.name: String should match pattern",
        "tools.0.function.name",
        NO_PYTHON,
        tools=[{"type": "function", "function": {"name": "a b"}}],
    ),
    http(
        "tool of another kind",
        "tools.0.type",
        "tools.0.type",
        path=CHAT,
        fields={"tools": [{"type": "web_search", "function": {"name": "f"}}]},
    ),
    http("tool without a name", "name", "tools.0.function.name", path=CHAT, fields={"tools": [{"function": {}}]}),
    http("tools that are no list", "tools must be a list", "tools", path=CHAT, fields={"tools": {}}),
    http(
        "top_logprobs without logprobs",
        "when using `top_logprobs`, `logprobs` must be set to true.",
        None,
        path=CHAT,
        fields={"top_logprobs": 2},
    ),
    http(
        "messages that are no list",
        "messages must be a list, got 'hi'.",
        "messages",
        path=CHAT,
        fields={"messages": "hi"},
    ),
    http("audio", "modalities must be ['text']", None, path=CHAT, fields={"modalities": ["audio"]}),
)

BODIES = (
    http("no prompt", "Either prompt or prompt_embeds must be provided and non-empty.", "prompt", fields={"prompt": None}),
    http("prompt of another type", "prompt must be a string, a list of strings,", "prompt", fields={"prompt": {"a": 1}}),
    http("prompt of two types", "prompt must be a string, a list of strings,", "prompt", fields={"prompt": [1, "a"]}),
    http("an empty prompt among others", "The decoder prompt cannot be empty", "prompt", fields={"prompt": ["a", ""]}),
    http("too many prompts", "prompt may hold at most 1024 prompts, got 1025.", "prompt", fields={"prompt": ["a"] * 1025}),
    http("suffix", "suffix is not currently supported", "suffix", fields={"suffix": "x"}),
    http("best_of below n", "best_of must be greater than or equal to n", "best_of", fields={"n": 2, "best_of": 1}),
    http("best_of streamed", "best_of cannot be used with `stream=True`", "best_of", fields={"best_of": 2, "stream": True}),
    http("beam search", "use_beam_search is not supported over HTTP", "use_beam_search", fields={"use_beam_search": True}),
    http(
        "prompt_embeds of a server without them",
        "You must set `--enable-prompt-embeds` to input `prompt_embeds`.",
        "prompt_embeds",
        fields={"prompt_embeds": "AAAA"},
    ),
    http(
        "a part of a chat that is embeddings, of a server without them",
        "You must set `--enable-prompt-embeds` to input `prompt_embeds`.",
        "messages[0].content[0]",
        path=CHAT,
        fields={"messages": [{"role": "user", "content": [{"type": "prompt_embeds", "data": "AAAA"}]}]},
    ),
    http(
        "prompt_embeds of a chat",
        "prompt_embeds is not supported for chats",
        None,
        path=CHAT,
        fields={"prompt_embeds": "AAAA"},
    ),
    http(
        "stream_options of a whole answer",
        "Stream options can only be defined when `stream=True`.",
        "stream_options",
        fields={"stream_options": {"include_usage": True}},
    ),
    http(
        "prompt_logprobs of a stream",
        "`prompt_logprobs` are not available when `stream=True`.",
        "prompt_logprobs",
        fields={"prompt_logprobs": 1, "stream": True},
    ),
    http("stream=yes", "stream must be true or false, got 'yes'.", "stream", fields={"stream": "yes"}),
    http("logit_bias list", "logit_bias must be an object, got [1].", "logit_bias", fields={"logit_bias": [1]}),
    http(
        "both constraints",
        "Only one of response_format and structured_outputs can be given.",
        "response_format",
        fields={"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    ),
    http("format of no kind", "response_format.type", "response_format.type", fields={"response_format": {"type": "xml"}}),
    http(
        "format without its schema",
        "response_format of type json_schema needs json_schema.schema",
        "response_format",
        fields={"response_format": {"type": "json_schema"}},
    ),
    http("priority", "priority must fit 32 bits, got 1099511627776.", "priority", fields={"priority": 2**40}),
    remote("request_id", "request_id must match", "request_id", fields={"request_id": "a b"}),
    remote("truncation", "truncate_prompt_tokens", "truncate_prompt_tokens", fields={"truncate_prompt_tokens": 0}),
    remote("truncation_side", "truncation_side", "truncation_side", fields={"truncation_side": "up"}),
    http("NaN", "temperature must be in [0, 2], got nan.", "temperature", content=b'{"prompt": "x", "temperature": NaN}'),
    http("Infinity", "top_p must be in (0, 1], got inf.", "top_p", content=b'{"prompt": "x", "top_p": Infinity}'),
    http("broken JSON", "The body is not valid JSON", content=b'{"prompt": '),
    http("no body", "The body is not valid JSON", content=b""),
    http("a list", "The body must be an object.", content=b"[]"),
    http("not UTF-8", "The body is not UTF-8: byte 12 is 0xff.", content=b'{"prompt": "\xff"}'),
    http("half a character", "lone surrogate \\ud800 at byte 12", content=b'{"prompt": "\\ud800"}'),
    http("deep nesting", "recursion limit", content=b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    http("a number without end", "number out of range", content=b'{"prompt": "x", "n": ' + b"9" * 5000 + b"}"),
    http(
        "a form",
        "application/json",
        status=415,
        content=b"prompt=x",
        headers={"content-type": "application/x-www-form-urlencoded"},
    ),
    http("plain text", "application/json, got 'text/plain'", status=415, content=b"{}", headers={"content-type": "text/plain"}),
    http("compressed", "Content-Encoding", status=415, content=b"\x1f\x8b", headers={"content-encoding": "gzip"}),
    http("a body over the limit", "at most 33554432 are taken", status=413, content=b" " * (32 * 2**20 + 1)),
    http("nothing there", "There is nothing at /v1/nothing.", status=404, path="/v1/nothing", content=b"{}"),
    http("no POST there", "/v1/models does not take POST requests.", status=405, path="/v1/models", content=b"{}"),
)

TOKENS = (
    http("profile with NUL in its name", "must be a plain file name", "prefix", path="/start_profile?prefix=%00", content=b""),
    http("tokenize nothing", "Exactly one of `prompt` and `messages`", "prompt", path="/tokenize", content=b"{}"),
    http("tokenize a number", "prompt must be a string, got 5.", "prompt", path="/tokenize", content=b'{"prompt": 5}'),
    http("tokenize no messages", "messages cannot be empty", "messages", path="/tokenize", content=b'{"messages": []}'),
    http("detokenize nothing", "tokens: Field required", "tokens", path="/detokenize", content=b"{}"),
    http(
        "detokenize text",
        "tokens must contain only integers, got 'a'.",
        "tokens",
        path="/detokenize",
        content=b'{"tokens": ["a"]}',
    ),
    http(
        "detokenize an unknown id", f"Token id {VOCAB} is out of", "tokens", path="/detokenize", content=b'{"tokens": [49152]}'
    ),
    http(
        "detokenize below zero", "Token id -1 is out of vocabulary.", "tokens", path="/detokenize", content=b'{"tokens": [-1]}'
    ),
)

ROWS = (*SAMPLING, *STRUCTURED, *PROMPTS, *CHATS, *TOOLS, *BODIES, *TOKENS)
