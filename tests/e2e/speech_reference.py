"""The text, tokens and times of a recording by transformers' own Whisper."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from tests.whisper_files import END, NO_TIMES, PREVIOUS, START, save_whisper
from tetrad.tokenizer_svc.speech.cutting import cut

RATE = 16_000
TIME = re.compile(r"<\|\d+\.\d\d\|>")


def save_talkative_whisper(directory: Path, num_seconds: int = 30, seed: int = 3) -> None:
    """Write a tiny model that writes few timestamps; without a change, most of its tokens would be some."""
    model = save_whisper(directory, seed=seed, num_seconds=num_seconds)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[tokenizer.convert_tokens_to_ids("<|0.00|>") :] *= 0.5
    generation = (directory / "generation_config.json").read_bytes()
    model.save_pretrained(directory)
    (directory / "generation_config.json").write_bytes(generation)  # transformers writes it without what it does not know


@dataclass(frozen=True)
class Written:
    """The generated tokens of a piece, without the end of text, and their log-probabilities."""

    token_ids: list[int]
    logprobs: list[float]


class SpeechReference:
    """transformers' model and processors of a directory."""

    def __init__(self, directory: Path) -> None:
        self.model = WhisperForConditionalGeneration.from_pretrained(directory).eval()
        self.model.generation_config.max_initial_timestamp_index = 50  # as in all of OpenAI's models
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.extractor = WhisperFeatureExtractor.from_pretrained(directory)

    def ids(self, *tokens: str) -> list[int]:
        return [self.tokenizer.convert_tokens_to_ids(token) for token in tokens]

    def language(self, wave: np.ndarray, languages: tuple[str, ...]) -> str:
        """Return the code of the likeliest language of a recording's first piece."""
        [first, *_] = self.features(wave)
        logits = self._logits(self._encoded(first), self.ids(START))[0, -1]
        return max(languages, key=lambda code: logits[self.ids(f"<|{code}|>")[0]].item())

    def prompt(self, language: str, task: str = "transcribe", last: Sequence[str] = (NO_TIMES,), before: str = "") -> list[int]:
        """Return the ids of a prompt; without its last token the model writes timestamps."""
        earlier = self.tokenizer.encode(f" {before}", add_special_tokens=False) if before else []
        return [*(self.ids(PREVIOUS) + earlier if earlier else []), *self.ids(START, f"<|{language}|>", f"<|{task}|>", *last)]

    def features(self, wave: np.ndarray) -> list[torch.Tensor]:
        bounds = cut(wave, RATE, 30.0)
        found = [self.extractor(wave[start:end], sampling_rate=RATE, return_tensors="pt") for start, end in pairwise(bounds)]
        return [each["input_features"] for each in found]

    def write(
        self, features: torch.Tensor, prompt: list[int], num_tokens: int, *, with_times: bool = False, written_before: int = 0
    ) -> Written:
        """Return the likeliest tokens after a prompt, with times by transformers' rules."""
        ids, logprobs = list(prompt), []
        rules = [WhisperTimeStampLogitsProcessor(self.model.generation_config, len(prompt))] if with_times else []
        [end, first] = self.ids(END, "<|0.00|>")
        heard = self._encoded(features)
        for _ in range(num_tokens):
            values = self._logits(heard, ids)[0, -1].log_softmax(-1)
            scores = values[None].clone()
            if with_times and len(ids) > len(prompt) + 1 and min(ids[-2:]) >= first and ids[-1] < first + written_before:
                scores[0, end] = -torch.inf  # a sentence that has begun is written
            for rule in rules:
                scores = rule(torch.tensor([ids]), scores)
            token = int(scores[0].argmax())
            if token == end:
                break
            ids.append(token)
            logprobs.append(values[token].item())
        return Written(ids[len(prompt) :], logprobs)

    def no_speech(self, features: torch.Tensor, language: str) -> float:
        """Return the probability that nobody speaks, by the logits behind the start token."""
        logits = self._logits(self._encoded(features), self.prompt(language, last=()))[0, 0]
        return logits.softmax(-1)[self.ids("<|nospeech|>")[0]].item()

    def text(self, token_ids: list[int]) -> str:
        return TIME.sub("", self.tokenizer.decode(token_ids, skip_special_tokens=True)).strip()

    @torch.inference_mode()
    def _encoded(self, features: torch.Tensor) -> BaseModelOutput:
        return self.model.model.encoder(features)

    @torch.inference_mode()
    def _logits(self, heard: BaseModelOutput, ids: list[int]) -> torch.Tensor:
        return self.model(encoder_outputs=heard, decoder_input_ids=torch.tensor([ids])).logits
