"""VisionReference: runs transformers' processor and model on prompts with images; tests compare the services with it.

Runs the PIL image processors and the whole model in float32 on the CPU. Packages that read videos, torchvision and
num2words, are not installed: `load_processor` builds processors without them.
"""

import importlib
import inspect
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import transformers
from PIL import Image
from transformers.models.smolvlm import processing_smolvlm
from transformers.processing_utils import ProcessorMixin

from tests.llama4_images import llama4_image_processor

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Prepared:
    """A conversation and its images, as transformers' processor returns them.

    Attributes:
        text: what the chat template writes, before placeholders are expanded.
        token_ids: the prompt, placeholders expanded.
        tensors: the processor's tensors of all images, pixels normalised in float32, without text.
        inputs: arguments of the model.
    """

    text: str
    token_ids: list[int]
    tensors: Mapping[str, torch.Tensor]
    inputs: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Generated:
    """Greedy tokens of the whole model; `logprobs` [N, vocabulary] float32 are those of all tokens at each."""

    token_ids: list[int]
    logprobs: torch.Tensor

    def logprobs_of_tokens(self) -> list[float]:
        """Return the log-probability of each greedy token."""
        return self.logprobs[torch.arange(len(self.token_ids)), torch.tensor(self.token_ids)].tolist()


class VisionReference:
    """transformers' processor and model of a directory. float64 leaves rounding errors to the side that is tested."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        self.processor = load_processor(directory)
        load = transformers.AutoModelForImageTextToText.from_pretrained
        self.model = load(directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
        self.model.generation_config.eos_token_id = None

    def prepare(self, messages: Messages, images: Sequence[bytes], **kwargs: object) -> Prepared:
        """Render messages, whose parts `{"type": "image"}` stand for `images` in order; `kwargs` are the image processor's."""
        tokenizer = self.processor.tokenizer
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.prepare_text(text, images, **kwargs)

    def prepare_text(self, text: str, images: Sequence[bytes], **kwargs: object) -> Prepared:
        """Expand a text's placeholders, one for each of `images` (encoded files)."""
        files = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
        parts: dict[str, Any] = {"images_kwargs": kwargs} if kwargs else {}
        # Nested lists: processors that take batches see the images of one prompt. Special tokens are those of the text.
        its = dict(self.processor(images=[files] if files else None, text=[text], return_tensors="pt", **parts | _TEXT))
        tensors = {name: each for name, each in its.items() if name not in _TEXT_NAMES}
        # The processors of GLM cannot make these of a tensor.
        kinds = (its["input_ids"] == self.model.config.image_token_id).int()
        its |= {"mm_token_type_ids": kinds, "token_type_ids": kinds}
        taken = inspect.signature(self.model.forward).parameters
        inputs = {name: each for name, each in its.items() if name in taken}
        return Prepared(text, its["input_ids"][0].tolist(), tensors, inputs)

    @torch.no_grad()
    def embeddings(self, prepared: Prepared) -> torch.Tensor:
        """Return the embeddings of all images in the order of the prompt's placeholders, [N, hidden] float32."""
        features = self.model.get_image_features(**prepared.tensors)
        if features.pooler_output is None:  # Llama 4 projects them in its `forward`
            return _rows(self.model.multi_modal_projector(features.last_hidden_state))
        return _rows(features.pooler_output)

    @torch.no_grad()
    def deep_embeddings(self, prepared: Prepared) -> list[torch.Tensor]:
        """Return what the first layers add at the images' placeholders, [N, hidden] a layer; none without DeepStack."""
        features = self.model.get_image_features(**prepared.tensors)
        return [_rows(each) for each in getattr(features, "deepstack_features", None) or []]

    @torch.no_grad()
    def generate(self, prepared: Prepared, count: int) -> Generated:
        """Return `count` greedy tokens; EOS does not end them."""
        settings = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
        inputs = {name: _as_dtype(each, self.model.dtype) for name, each in prepared.inputs.items()}
        out = self.model.generate(**inputs, generation_config=settings, return_dict_in_generate=True, output_logits=True)
        logprobs = torch.cat(out.logits).float().log_softmax(dim=-1)
        return Generated(out.sequences[0, len(prepared.token_ids) :].tolist(), logprobs)


def _as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


_TEXT: Mapping[str, Any] = {"return_mm_token_type_ids": False, "add_special_tokens": False}
_TEXT_NAMES = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


def load_processor(directory: Path) -> ProcessorMixin:
    """Return the processor that processor_config.json names, with the PIL image processor of preprocessor_config.json."""
    values = json.loads((directory / "processor_config.json").read_text())
    processor = _processor_class(values.pop("processor_class"))
    images = json.loads((directory / "preprocessor_config.json").read_text())
    parts: dict[str, Any] = dict.fromkeys(processor.get_attributes())
    parts["image_processor"] = _image_processor(images.pop("image_processor_type"))(**images)
    parts["tokenizer"] = transformers.AutoTokenizer.from_pretrained(directory)
    with patch.object(ProcessorMixin, "check_argument_for_proper_class"), patch.object(processing_smolvlm, "num2words", str):
        return processor(**parts, **values)


def _image_processor(name: str) -> Any:
    """Return the class of an image processor on Pillow; that of Llama 4, which transformers has with torchvision alone."""
    return llama4_image_processor() if name == "Llama4ImageProcessor" else getattr(transformers, f"{name}Pil")


def _processor_class(name: str) -> type[ProcessorMixin]:
    """Return transformers' class of this name.

    The module of PixtralProcessor takes a function from that of the torchvision processor: here from that of the PIL
    processor, which has the same function.
    """
    if name != "PixtralProcessor":
        return cast(type[ProcessorMixin], getattr(transformers, name))
    package = "transformers.models.pixtral"
    alike = importlib.import_module(f"{package}.image_processing_pil_pixtral")
    with patch.dict(sys.modules, {f"{package}.image_processing_pixtral": alike}):
        module = importlib.import_module(f"{package}.processing_pixtral")
    return cast(type[ProcessorMixin], module.PixtralProcessor)


def _rows(features: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all images, which classes return as [images, N, hidden] or as one tensor an image."""
    if isinstance(features, torch.Tensor):
        return features.reshape(-1, features.shape[-1])
    return torch.cat([each.reshape(-1, each.shape[-1]) for each in features])
