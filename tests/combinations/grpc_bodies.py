"""Bodies of HTTP requests as messages of the public gRPC API, and its answers as bodies: both APIs give one answer."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format

from tetrad.v1 import inference_pb2, types_pb2

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_SCALARS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "prompt_logprobs", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "thinking_token_budget"),
)
_LISTS = ("stop_token_ids", "logprob_token_ids")
_TEXT_SCALARS = ("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")
_TEXT_LISTS = ("stop", "bad_words")
_MANNER = ("include_reasoning", "continue_final_message", "add_generation_prompt", "echo")
_OF_HTTP_ALONE = {"best_of", "return_tokens_as_token_ids", "response_format"}


def takes(path: str, body: Mapping[str, Any]) -> bool:
    """Return whether the gRPC API has all that a body asks for."""
    if path == COMPLETIONS and ("echo" in body or _is_several(body["prompt"])):
        return False
    return path in (COMPLETIONS, CHAT) and not _OF_HTTP_ALONE & body.keys()


def _is_several(prompt: str | list[Any]) -> bool:
    return isinstance(prompt, list) and not isinstance(prompt[0], int)


def generate_request(body: Mapping[str, Any], request_id: str) -> inference_pb2.GenerateRequest:
    """Return the message of a body for /v1/completions."""
    message = inference_pb2.GenerateRequest(model=body["model"], priority=body["priority"], request_id=request_id)
    if isinstance(body["prompt"], str):
        message.text = body["prompt"]
    else:
        message.token_ids.ids.extend(body["prompt"])
    _fill_parameters(message, body)
    if "logprobs" in body:
        message.sampling_params.logprobs = body["logprobs"]
    return message


def chat_request(body: Mapping[str, Any], request_id: str) -> inference_pb2.ChatRequest:
    """Return the message of a body for /v1/chat/completions."""
    message = inference_pb2.ChatRequest(model=body["model"], request_id=request_id)
    for turn in body["messages"]:
        content = turn["content"]
        new = message.messages.add(**{name: turn[name] for name in ("role", "reasoning", "tool_call_id") if name in turn})
        for call in turn.get("tool_calls", ()):
            new.tool_calls.add(id=call["id"], name=call["function"]["name"], arguments_json=call["function"]["arguments"])
        if isinstance(content, str):
            new.content = content
            continue
        for part in content:
            kind = part["type"]
            if kind == "text":
                new.content_parts.add(text=part["text"])
            else:
                url = inference_pb2.MediaPart(url=part[kind]["url"])
                new.content_parts.add(**{kind.removesuffix("_url"): url})
    _fill_parameters(message, body)
    if body.get("logprobs"):
        message.sampling_params.logprobs = body["top_logprobs"]
    for tool in body.get("tools", ()):
        function = tool["function"]
        parameters, strict = json.dumps(function["parameters"]), function.get("strict", False)
        message.tools.add(name=function["name"], parameters_json=parameters, strict=strict)
    if "tool_choice" in body:
        _fill_choice(message.tool_choice, body["tool_choice"])
    for name in body.keys() & {"parallel_tool_calls", *_MANNER}:
        setattr(message, name, body[name])
    return message


def _fill_choice(message: inference_pb2.ToolChoice, choice: Any) -> None:
    mode = choice
    if isinstance(choice, dict) and choice["type"] == "function":
        message.function = choice["function"]["name"]
        return
    if isinstance(choice, dict):
        mode = choice["allowed_tools"]["mode"]
        message.allowed_functions.extend(each["function"]["name"] for each in choice["allowed_tools"]["tools"])
    message.mode = inference_pb2.ToolChoiceMode.Value(f"TOOL_CHOICE_MODE_{mode.upper()}")


def _fill_parameters(message: inference_pb2.GenerateRequest | inference_pb2.ChatRequest, body: Mapping[str, Any]) -> None:
    params, texts = message.sampling_params, message.text_options
    for names, its in ((_SCALARS, params), (_TEXT_SCALARS, texts)):
        for name in body.keys() & set(names):
            setattr(its, name, body[name])
    for names, its in ((_LISTS, params), (_TEXT_LISTS, texts)):
        for name in body.keys() & set(names):
            getattr(its, name).extend(body[name])
    params.logit_bias.update(body.get("logit_bias", {}))
    if "allowed_token_ids" in body:
        texts.allowed_token_ids.ids.extend(body["allowed_token_ids"])
    if "repetition_detection" in body:
        params.repetition_detection.CopyFrom(types_pb2.RepetitionDetection(**body["repetition_detection"]))
    if "vllm_xargs" in body:
        params.extra_args.update(body["vllm_xargs"])
    if "structured_outputs" in body:
        _fill_constraint(params.structured_outputs, dict(body["structured_outputs"]))
    for name in body.keys() & {"n", "truncate_prompt_tokens", "truncation_side", "cache_salt"}:
        setattr(message, name, body[name])


def _fill_constraint(message: types_pb2.StructuredOutputs, fields: dict[str, Any]) -> None:
    message.start_after_token_ids.extend(fields.pop("start_after_token_ids", ()))
    for name, value in fields.items():
        if name == "choice":
            message.choice.choices.extend(value)
        else:
            setattr(message, "json_schema" if name == "json" else name, json.dumps(value) if name == "json" else value)


def body_of(messages: Iterable[inference_pb2.GenerateResponse] | Iterable[inference_pb2.ChatResponse]) -> dict[str, Any]:
    """Return the messages of an answer as the body of the HTTP answer; of log-probabilities only those of the tokens."""
    choices: dict[int, dict[str, Any]] = {}
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens"), 0)
    for message in messages:
        choice = choices.setdefault(
            message.index, {"index": message.index, "token_ids": [], "sampled_logprobs": [], "calls": {}}
        )
        choice["index"] = message.index
        choice["token_ids"] += message.token_ids
        choice["sampled_logprobs"] += [each.sampled.logprob for each in message.logprobs]
        turn = choice.setdefault("message", {"tool_calls": {}})
        for its, names in ((choice, {"text"}), (turn, {"content", "reasoning"})):
            for name in names.intersection(message.DESCRIPTOR.fields_by_name):
                its[name] = its.get(name, "") + getattr(message, name)
        for call in getattr(message, "tool_calls", ()):
            known = turn["tool_calls"].setdefault(call.index, {"function": {"name": "", "arguments": ""}})["function"]
            known["name"] += call.name
            known["arguments"] += call.arguments_json
        if message.finish_reason:
            enum = message.DESCRIPTOR.fields_by_name["finish_reason"].enum_type
            name = enum.values_by_number[message.finish_reason].name
            choice["finish_reason"] = name.rpartition("FINISH_REASON_")[2].lower()
            if message.HasField("stop_reason"):
                [choice["stop_reason"]] = json_format.MessageToDict(message.stop_reason).values()
            usage["prompt_tokens"] = message.usage.prompt_tokens
            usage["completion_tokens"] += message.usage.completion_tokens
            usage["reasoning_tokens"] += message.usage.reasoning_tokens
    return {"choices": [choice for _, choice in sorted(choices.items())], "usage": usage}
