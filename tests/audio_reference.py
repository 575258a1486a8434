"""AudioReference: runs transformers' feature extractor and model on prompts with audio; tests compare the services with it."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.audio_files import AUDIO_KINDS
from tests.sounds import Samples
from tests.vision_reference import Generated


@dataclass(frozen=True)
class PreparedAudio:
    """A prompt with audio, as transformers' processor makes it.

    Attributes:
        token_ids: the prompt, placeholders expanded.
        features: the tensors of each item, by transformers' names.
        num_embeds: number of tokens that each item replaces.
        inputs: arguments of the model.
    """

    token_ids: list[int]
    features: Sequence[Mapping[str, torch.Tensor]]
    num_embeds: Sequence[int]
    inputs: Mapping[str, torch.Tensor]


class AudioReference:
    """transformers' processor and model of a directory."""

    def __init__(self, directory: Path) -> None:
        name = json.loads((directory / "config.json").read_text())["model_type"]
        self.kind = AUDIO_KINDS[name]
        values = json.loads((directory / "processor_config.json").read_text())
        its = json.loads((directory / "preprocessor_config.json").read_text())
        extractor = getattr(transformers, its.pop("feature_extractor_type"))
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        processor = getattr(transformers, values.pop("processor_class"))
        if "audio_token" in inspect.signature(processor.__init__).parameters:
            values["audio_token"] = self.kind.mark
        template = self.tokenizer.chat_template
        self.processor = processor(
            feature_extractor=extractor(**its), tokenizer=self.tokenizer, chat_template=template, **values
        )
        load = getattr(transformers, self.kind.architecture).from_pretrained
        self.model = load(directory, dtype=torch.float32, attn_implementation="eager").eval()
        self.model.generation_config.eos_token_id = None

    def prepare(self, parts: Sequence[str | Samples]) -> PreparedAudio:
        """Return the prompt of a message of these texts and audios [N] at the extractor's rate."""
        return self.prepare_text(self.text_of(parts), [part for part in parts if not isinstance(part, str)])

    def text_of(self, parts: Sequence[str | Samples]) -> str:
        """Return what the template writes for such a message, with a placeholder for each audio."""
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "audio"} for part in parts]
        messages = [{"role": "user", "content": content}]
        return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def prepare_text(self, text: str, audios: Sequence[Samples]) -> PreparedAudio:
        """Expand a text's placeholders, one for each audio. Processors take one audio a text: each is expanded by itself."""
        mark = self.kind.mark
        before, *others = text.split(mark)
        made = [self.processor(text=[mark], audio=[audio], return_tensors="pt") for audio in audios]
        numbers = [int((each["input_ids"] == self.model.config.audio_token_id).sum()) for each in made]
        expanded = before + "".join(mark * number + other for number, other in zip(numbers, others, strict=True))
        token_ids = self.tokenizer(expanded, add_special_tokens=False)["input_ids"]
        names = [name for name in made[0] if name not in ("input_ids", "attention_mask")] if made else []
        inputs = {name: _joined([each[name] for each in made]) for name in names}
        features = [{name: each[name] for name in names} for each in made]
        return PreparedAudio(token_ids, features, numbers, inputs)

    @torch.no_grad()
    def generate(self, prepared: PreparedAudio, count: int) -> Generated:
        """Return `count` greedy tokens; EOS does not end them."""
        settings = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
        ids = torch.tensor([prepared.token_ids])
        out = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **prepared.inputs,
            generation_config=settings,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logprobs = torch.cat(out.logits).float().log_softmax(dim=-1)
        return Generated(out.sequences[0, len(prepared.token_ids) :].tolist(), logprobs)


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of several audios as one; those of fewer frames are filled up with zeros, which nothing marks as sound."""
    longest = max(each.shape[-1] for each in tensors)
    return torch.cat([torch.nn.functional.pad(each, (0, longest - each.shape[-1])) for each in tensors])


def features_of(prepared: PreparedAudio, index: int, kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of an item as the tokenizer service sends them."""
    made = {name: each.numpy() for name, each in prepared.features[index].items()}
    mask = AUDIO_KINDS[kind].mask
    tensors = {"input_features": made["input_features"], mask: made[mask].astype(np.int64)}
    return tensors if AUDIO_KINDS[kind].processor_config else {name: each[0] for name, each in tensors.items()}
