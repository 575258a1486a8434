"""Draws random requests: library calls, HTTP bodies, beam searches, poolings. A seed always gives the same ones."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.combinations.asked import Asked, BeamCall, BodyCall, LibraryCall, PoolingCall, TurnCall
from tests.combinations.chats import SCHEMA, TURN, Conversations
from tests.combinations.checkpoints import Checkpoint
from tests.combinations.dialogues import DialogueCall
from tests.toy_tokenizer import EOS_IDS
from tetrad import BeamSearchParams, LoRARequest, SamplingParams
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.sampling_params import RepetitionDetection
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

MAX_TOKENS = 24
LONGEST_TURN = 120
"""Tokens of a turn with two calls."""
LONGEST_PROMPT = 70
MOST_IDS = 200
NUM_IDS = 268
CONSTRAINTS: Sequence[Mapping[str, Any]] = (
    {"choice": ["a", "bc", "bcd", "ü"]},
    {"regex": "([a-c]{1,4}-[0-3]{2};){2,5}"},
    {"json_object": True},
    {"json": SCHEMA},
    {"grammar": 'start: "x" | "y" start'},
    {"regex": "(ab)*", "start_after_token_ids": [37]},
    {"regex": TURN},
    {"regex": TURN},
)
_Draw = Callable[[random.Random], Any]


def _ids(rng: random.Random) -> list[int]:
    few = [*EOS_IDS, 68, 69]
    return rng.choice([rng.sample(few, rng.randint(1, 2)), [rng.randrange(NUM_IDS) for _ in range(rng.randint(1, 9))]])


def _texts(rng: random.Random) -> list[str]:
    return ["".join(rng.choice("abcdeEst \nü{<") for _ in range(rng.randint(1, 2))) for _ in range(rng.randint(1, 4))]


_FIELDS: Mapping[str, _Draw] = {
    "top_p": lambda rng: rng.choice([1e-6, 0.3, 0.9]),
    "top_k": lambda rng: rng.choice([1, 5, NUM_IDS, 10**6]),
    "min_p": lambda rng: rng.choice([0.01, 0.2, 1.0]),
    "presence_penalty": lambda rng: rng.choice([-2.0, -0.5, 0.7, 2.0]),
    "frequency_penalty": lambda rng: rng.choice([-2.0, -0.5, 0.7, 2.0]),
    "repetition_penalty": lambda rng: rng.choice([0.5, 0.9, 1.2, 3.0]),
    "stop": _texts,
    "stop_token_ids": _ids,
    "include_stop_str_in_output": lambda rng: True,
    "ignore_eos": lambda rng: True,
    "logit_bias": lambda rng: {rng.randrange(NUM_IDS): rng.choice([-100.0, -3.0, 5.0, 9.0]) for _ in range(rng.randint(1, 4))},
    "allowed_token_ids": lambda rng: [*rng.sample(range(NUM_IDS), rng.randint(2, 40)), 0],
    "bad_words": _texts,
    "logprobs": lambda rng: rng.choice([-1, 0, 1, 3, 20]),
    "prompt_logprobs": lambda rng: rng.choice([-1, 0, 1, 5]),
    "logprob_token_ids": _ids,
    "n": lambda rng: rng.randint(2, 4),
    "structured_outputs": lambda rng: rng.choice(CONSTRAINTS),
    "thinking_token_budget": lambda rng: rng.randint(0, 6),
    "repetition_detection": lambda rng: {"max_pattern_size": rng.choice([1, 4]), "min_pattern_size": 1, "min_count": 2},
    "truncate_prompt_tokens": lambda rng: rng.choice([-1, 1, 20]),
    "skip_special_tokens": lambda rng: False,
    "spaces_between_special_tokens": lambda rng: False,
    "min_tokens": lambda rng: rng.randint(1, MAX_TOKENS // 2),
    "extra_args": lambda rng: {"favour": 3.0},
}
_OF_LIBRARY: Mapping[str, _Draw] = {
    "detokenize": lambda rng: False,
    "stream_interval": lambda rng: rng.randint(2, 5),
    "skip_reading_prefix_cache": lambda rng: True,
}
_OF_BODIES: Mapping[str, _Draw] = {
    "best_of": lambda rng: 4,
    "echo": lambda rng: True,
    "truncation_side": lambda rng: rng.choice(["left", "right"]),
    "return_tokens_as_token_ids": lambda rng: True,
}


class Drawing:
    """The source of one walk's requests.

    Args:
        rng: the randomness.
        checkpoint: the model.
        reasons: whether the answers are read as reasoning, which may have a budget.
    """

    def __init__(self, rng: random.Random, checkpoint: Checkpoint, *, reasons: bool) -> None:
        self.checkpoint = checkpoint
        self._rng, self._reasons = rng, reasons
        # What several prompts begin with, for the prefix cache.
        self._prefixes = [self._new_ids(rng.randint(1, LONGEST_PROMPT - 20)) for _ in range(4)]
        self._prompts: list[list[int]] = []
        self._conversations = Conversations(rng, self._text_prompt, modalities=checkpoint.modalities)

    def request(self) -> Asked:
        """Return another request."""
        kinds: list[Callable[[], Asked]] = [*[self._library] * 8, *[self._completion] * 3, *[self._chat] * 3]
        kinds += [*[self._turn] * 2, self._beams, self._dialogue]
        if self.checkpoint.embeds:
            kinds.append(self._pooling)
        return self._rng.choice(kinds)()

    def next_turn(self, call: Asked, answer: Any) -> Asked | None:
        """Return a request whose prompt is that of an answered one, its answer and a few ids more; None if there is none."""
        if not isinstance(call, LibraryCall) or not isinstance(answer, dict) or "prompt_embeds" in call.prompt:
            return None
        rng = self._rng
        answered = rng.choice(answer["outputs"])["token_ids"]
        ids = [*answer["prompt_token_ids"], *(each for each in answered if each < NUM_IDS), *self._new_ids(rng.randint(0, 3))]
        turn = self._library()
        same = {name: call.options[name] for name in ("lora_request", "cache_salt") if name in call.options}
        return replace(turn, prompt=ids[:MOST_IDS], options=turn.options | same)

    def _library(self) -> LibraryCall:
        rng = self._rng
        fields = self._fields(_FIELDS | _OF_LIBRARY)
        if constraint := fields.pop("structured_outputs", None):
            fields["structured_outputs"] = StructuredOutputsParams(**constraint)
        if repetition := fields.pop("repetition_detection", None):
            fields["repetition_detection"] = RepetitionDetection(**repetition)
        if fields.get("detokenize") is False:
            fields.pop("stop", None)
        if fields.get("prompt_logprobs") is not None:
            fields.pop("skip_reading_prefix_cache", None)
        options: dict[str, Any] = {"lora_request": self._adapter(), "priority": rng.randint(-2, 2)}
        if rng.random() < 0.2:
            options["cache_salt"] = rng.choice(["one", "two"])
        if rng.random() < 0.1:
            options["prediction"] = "abcabcabc"
        return LibraryCall(self._library_prompt(), SamplingParams(**fields), options)

    def _library_prompt(self) -> Any:
        return self._rng.choice([self._ids_prompt, self._ids_prompt, self._text_prompt, self._embeds_prompt])()

    def _completion(self) -> Asked:
        rng = self._rng
        body = self._fields(_FIELDS | _OF_BODIES)
        body |= {"model": self._model_name(), "return_token_ids": True, "priority": rng.randint(-2, 2)}
        prompts = [rng.choice([self._ids_prompt, self._text_prompt])() for _ in range(rng.choice([1, 1, 1, 3]))]
        if len({type(prompt) for prompt in prompts}) > 1:
            prompts = prompts[:1]
        body["prompt"] = prompts if len(prompts) > 1 else prompts[0]
        if rng.random() < 0.1:
            body["cache_salt"] = rng.choice(["one", "two"])
        return BodyCall("/v1/completions", _without_pairs(body), is_stream=rng.random() < 0.5)

    def _chat(self) -> Asked:
        rng = self._rng
        body = self._fields({name: draw for name, draw in _FIELDS.items() if name != "logprobs"})
        if rng.random() < 0.4:
            body |= {"logprobs": True, "top_logprobs": rng.choice([0, 2, 20])}
        if body.get("structured_outputs") == {"regex": TURN}:
            body["max_tokens"] = LONGEST_TURN
        messages = self._conversations.messages()
        body |= {"model": self._model_name(), "messages": messages, "return_token_ids": True}
        body |= self._conversations.fields(is_constrained="structured_outputs" in body) | self._conversations.manner(messages)
        return BodyCall("/v1/chat/completions", _without_pairs(body), is_stream=rng.random() < 0.5)

    def _dialogue(self) -> Asked:
        turns = [self._response() | {"store": True} for _ in range(self._rng.randint(1, 3))]
        return DialogueCall(turns, leaves_after=self._rng.choice([0, 1, 4, 9]))

    def _turn(self) -> Asked:
        return self._message() if self._rng.random() < 0.4 else TurnCall("/v1/responses", self._response())

    def _message(self) -> Asked:
        rng = self._rng
        text, limit = self._text_prompt(), rng.randint(1, MAX_TOKENS)
        messages = [{"role": "user", "content": text}]
        body = {"model": self._model_name(), "messages": messages, "max_tokens": limit, "temperature": 0}
        if rng.random() < 0.5:
            body["stop_sequences"] = rng.choice([["a"], ["e", "s"]])
        if rng.random() < 0.5:
            body["tools"] = [{"name": "look", "input_schema": SCHEMA}]
            body["tool_choice"] = {"type": rng.choice(["auto", "any"])}
        return TurnCall("/v1/messages", body)

    def _response(self) -> dict[str, Any]:
        rng = self._rng
        text, limit = self._text_prompt(), rng.randint(1, MAX_TOKENS)
        body = {"model": self._model_name(), "input": text, "max_output_tokens": limit, "temperature": 0, "store": False}
        if rng.random() < 0.3:
            body |= {"include": ["message.output_text.logprobs"], "top_logprobs": rng.randint(0, 5)}
        if rng.random() < 0.3:
            body["tools"] = [{"type": "function", "name": "look", "parameters": SCHEMA}]
            body["tool_choice"] = rng.choice(["auto", "required"])
        elif rng.random() < 0.4:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}
        return body

    def _beams(self) -> Asked:
        rng = self._rng
        params = BeamSearchParams(
            beam_width=rng.randint(1, 4),
            max_tokens=rng.randint(1, 8),
            ignore_eos=rng.random() < 0.5,
            length_penalty=rng.choice([-1.0, 1.0, 2.0]),
            early_stopping=rng.choice([True, False, "never"]),
        )
        return BeamCall(rng.choice([self._ids_prompt, self._text_prompt])(), params, self._adapter(), rng.randint(-2, 2))

    def _pooling(self) -> Asked:
        prompt = self._rng.choice([self._ids_prompt, self._text_prompt])()
        return PoolingCall(prompt, PoolingParams(task="embed"), self._adapter(), self._rng.randint(-2, 2))

    def _fields(self, drawn: Mapping[str, _Draw]) -> dict[str, Any]:
        rng = self._rng
        allowed = sorted(name for name in drawn if self._reasons or name != "thinking_token_budget")
        names = rng.sample(allowed, rng.randint(0, 6))
        fields = {name: drawn[name](rng) for name in names}
        fields |= {"temperature": rng.choice([0.0, 0.0, 0.5, 1.0, 1.6]), "seed": rng.randrange(1 << 40)}
        fields["max_tokens"] = max(rng.randint(1, MAX_TOKENS), fields.get("min_tokens", 1))
        return fields

    def _new_ids(self, count: int) -> list[int]:
        return [self._rng.randrange(5, 260) for _ in range(count)]

    def _ids_prompt(self) -> Any:
        rng = self._rng
        own = self._new_ids(rng.randint(1, 20))
        if rng.random() < 0.3:
            own = own[:5] * 3  # what lookups find
        prompt = [*rng.choice(self._prefixes), *own] if rng.random() < 0.6 else own
        if self._prompts and rng.random() < 0.2:
            prompt = rng.choice(self._prompts)
        self._prompts.append(prompt)
        return prompt

    def _text_prompt(self) -> Any:
        rng = self._rng
        return "".join(rng.choice("abc de{}<\nüß漢") for _ in range(rng.randint(1, 25)))

    def _embeds_prompt(self) -> Any:
        size = self.checkpoint.hidden_size
        generator = torch.Generator().manual_seed(self._rng.randrange(3))
        rows = torch.randn((40, size), generator=generator) * 0.2
        return {"prompt_embeds": rows[: self._rng.randint(1, 40)]}

    def _adapter(self) -> LoRARequest | None:
        return self._rng.choice([None, None, *self.checkpoint.adapters])

    def _model_name(self) -> str:
        adapter = self._adapter()
        return "base" if adapter is None else adapter.lora_name


def _without_pairs(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body without fields that others exclude, and with the names and the constraints that bodies have."""
    if "extra_args" in body:
        body["vllm_xargs"] = body.pop("extra_args")
    if "structured_outputs" in body:
        known = body["structured_outputs"]
        body["structured_outputs"] = {name: value for name, value in known.items() if name != "start_after_token_ids"}
    if "best_of" in body:
        body["best_of"] = max(body["best_of"], body.get("n", 1))
    return body
