"""Answers: the content of streams and whole answers in one form, and the check of each.

Knows the JSON of completions, chats and transcripts; knows nothing of connections or faults. Ids, times and numbers of cached
tokens are left out: they may differ between two runs of the same request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["equal", "lost", "duplicated", "different"]


@dataclass
class Choice:
    """One output, as far as it came.

    Attributes:
        logprobs: one entry per token, if the client asked for log-probabilities: (text, log-probability, rivals, offset).
        prompt_logprobs: one entry per token of the prompt, if the client asked for them.
        finish_reasons: as many as were sent; one if all is well.
    """

    text: str = ""
    calls: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish_reasons: list[Any] = field(default_factory=list)

    def add(self, chunk: dict[str, Any]) -> int:
        """Take a choice of an answer or of a stream's chunk; return how many characters and tokens it brought."""
        message = chunk.get("message") or chunk.get("delta") or {}
        text = (chunk.get("text") or "") + (message.get("content") or "")
        calls = "".join(_call_text(call) for call in message.get("tool_calls") or ())
        ids = chunk.get("token_ids") or []
        self.text += text
        self.calls += calls
        self.token_ids += ids
        self.logprobs += _positions(chunk.get("logprobs") or {})
        self.prompt_logprobs += chunk.get("prompt_logprobs") or []
        if chunk.get("finish_reason") is not None:
            self.finish_reasons.append((chunk["finish_reason"], chunk.get("stop_reason")))
        return len(text) + len(calls) + len(ids)


@dataclass
class Answer:
    """What came of one request.

    Attributes:
        choices: by index.
        embeddings: in their order.
        usage: prompt, completion and total tokens; None where none was sent.
        endings: how often the stream said [DONE]; 1 for a whole answer.
        error: message of the error with which the request ended; None: with none.
    """

    choices: dict[int, Choice] = field(default_factory=dict)
    embeddings: list[list[float]] = field(default_factory=list)
    usage: tuple[int, int, int] | None = None
    endings: int = 0
    error: str | None = None

    def add(self, body: dict[str, Any]) -> int:
        """Take a whole answer or one chunk of a stream; return how many characters and tokens it brought."""
        if body.get("object") == "response":
            body = _as_completion(body)
        elif "text" in body and "choices" not in body:
            body = _transcript_as_completion(body)
        brought = 0
        for choice in body.get("choices") or ():
            brought += self.choices.setdefault(choice.get("index", 0), Choice()).add(choice)
        self.embeddings += [each["embedding"] for each in body.get("data") or ()]
        if body.get("usage") is not None:
            usage = body["usage"]
            self.usage = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
        return brought


def judge(expected: Answer, answer: Answer, *, tolerance: float = 0.0) -> Verdict:
    """Return what is wrong with an answer.

    Args:
        expected: of the undisturbed run.
        answer: to be judged.
        tolerance: by how much log-probabilities and values of embeddings may differ.
    """
    if answer.endings > 1 or any(len(choice.finish_reasons) > 1 for choice in answer.choices.values()):
        return "duplicated"
    if answer.endings == 0 or answer.choices.keys() != expected.choices.keys():
        return "lost"
    if len(answer.embeddings) != len(expected.embeddings):
        return "lost" if len(answer.embeddings) < len(expected.embeddings) else "duplicated"
    if not _same(expected.embeddings, answer.embeddings, tolerance):
        return "different"
    verdicts = {_judge_choice(expected.choices[index], choice, tolerance) for index, choice in answer.choices.items()}
    for verdict in ("lost", "duplicated", "different"):
        if verdict in verdicts:
            return verdict
    return "equal" if (answer.usage, answer.error) == (expected.usage, expected.error) else "different"


def is_beginning(expected: Answer, answer: Answer, *, tolerance: float = 0.0) -> bool:
    """Return whether a client that left, or lost its frontend, had seen nothing wrong until then."""
    return (
        answer.endings <= expected.endings
        and answer.error in (None, expected.error)
        and all(
            index in expected.choices and _begins(expected.choices[index], choice, tolerance)
            for index, choice in answer.choices.items()
        )
    )


def _judge_choice(expected: Choice, choice: Choice, tolerance: float) -> Verdict:
    if _begins(expected, choice, tolerance):
        complete = len(choice.text) == len(expected.text) and len(choice.calls) == len(expected.calls)
        complete &= len(choice.token_ids) == len(expected.token_ids) and len(choice.logprobs) == len(expected.logprobs)
        complete &= len(choice.prompt_logprobs) == len(expected.prompt_logprobs)
        return "equal" if complete and choice.finish_reasons == expected.finish_reasons else "lost"
    sizes = [(len(each.text), len(each.calls), len(each.token_ids), len(each.logprobs)) for each in (expected, choice)]
    longer = any(has > should for should, has in zip(*sizes, strict=True))
    shorter = any(has < should for should, has in zip(*sizes, strict=True))
    # More of something and less of nothing: it came twice. Less of something: it was left out.
    return "different" if longer == shorter else "duplicated" if longer else "lost"


def _begins(expected: Choice, choice: Choice, tolerance: float) -> bool:
    reasons = choice.finish_reasons
    return (
        expected.text.startswith(choice.text)
        and expected.calls.startswith(choice.calls)
        and expected.token_ids[: len(choice.token_ids)] == choice.token_ids
        and _same(expected.logprobs[: len(choice.logprobs)], choice.logprobs, tolerance)
        and _same(expected.prompt_logprobs[: len(choice.prompt_logprobs)], choice.prompt_logprobs, tolerance)
        and reasons == expected.finish_reasons[: len(reasons)]
    )


def _same(expected: Any, value: Any, tolerance: float) -> bool:
    """Compare nested lists and mappings; numbers within `tolerance`."""
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(_same(each, value[key], tolerance) for key, each in expected.items())
    if isinstance(expected, (list, tuple)) and isinstance(value, (list, tuple)):
        return len(expected) == len(value) and all(
            _same(one, other, tolerance) for one, other in zip(expected, value, strict=True)
        )
    if isinstance(expected, float) and isinstance(value, float):
        return abs(expected - value) <= tolerance
    return bool(expected == value)


def _as_completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return a response of /v1/responses in the form of a completion."""
    texts = [part["text"] for item in body["output"] for part in item.get("content") or () if "text" in part]
    usage = body["usage"]
    return {
        "choices": [{"index": 0, "text": "".join(texts), "finish_reason": body["status"]}],
        "usage": {
            "prompt_tokens": usage["input_tokens"],
            "completion_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
        },
    }


def _transcript_as_completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return a transcript in the form of a completion; its language and its segments stand in other fields."""
    segments = body.get("segments") or ()
    choice = {
        "index": 0,
        "text": body["text"],
        "token_ids": [token_id for each in segments for token_id in each["tokens"]],
        "prompt_logprobs": [
            *((each["start"], each["end"], each["text"], each["avg_logprob"], each["no_speech_prob"]) for each in segments),
            *((each["start"], each["end"], each["word"]) for each in body.get("words") or ()),
        ],
        "finish_reason": "stop",
        "stop_reason": body.get("language"),
    }
    return {"choices": [choice]}


def _positions(logprobs: dict[str, Any]) -> Iterable[Any]:
    """Return (text, log-probability, rivals, offset) of each token, from the form of chats or of completions."""
    if "content" in logprobs:
        return [
            (each["token"], each["logprob"], [(rival["token"], rival["logprob"]) for rival in each["top_logprobs"]], None)
            for each in logprobs["content"] or ()
        ]
    tokens: Sequence[str] = logprobs.get("tokens") or ()
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    return (
        [
            (token, value, sorted(top.items()) if top else None, offset)
            for token, value, top, offset in zip(tokens, logprobs["token_logprobs"], tops, logprobs["text_offset"], strict=True)
        ]
        if tokens
        else []
    )


def _call_text(call: dict[str, Any]) -> str:
    """Return the text of a tool call or of a piece of one; its random id is left out."""
    function = call.get("function") or {}
    return (function.get("name") or "") + (function.get("arguments") or "")
