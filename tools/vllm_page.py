"""Writes docs/vllm.md, the table of vLLM's arguments and methods in Tetrad: `python tools/vllm_page.py > docs/vllm.md`.

vLLM's signatures are in tests/tetrad/library/vllm_signatures.json; Tetrad's signatures and verdicts are read from its classes.
A vLLM argument that Tetrad neither has nor gives a verdict on is an error. A test compares the page with this output.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tetrad import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from tetrad.frontend.request.foreign_sampling import SAMPLING_VERDICTS
from tetrad.services.verdicts import Verdict, verdicts_of

ROOT = Path(__file__).parents[1]
SIGNATURES = ROOT / "tests" / "tetrad" / "library" / "vllm_signatures.json"

_INTRODUCTION = """# Programs made for vLLM

They run with the import changed: `from tetrad import LLM, SamplingParams`. Modules are where vLLM has them:
`tetrad.sampling_params`, `.inputs`, `.outputs`, `.config`, `.engine.arg_utils`, `.engine.async_llm_engine`,
`.entrypoints.llm`, `.lora.request`, `.utils`, `.usage.usage_lib`, `.v1.engine.async_llm`, `.v1.metrics.reader`,
`.v1.metrics.loggers`, `.multimodal.image`, `.multimodal.utils`, `.assets.image`. Forms of older versions are taken as well:
`prompt_token_ids=`, `inputs=`, `guided_options_request=`, `GuidedDecodingParams`, positional arguments, and the arguments at
the end of this page. `tests/tetrad/library/vllm_scripts` has a program for each page of vLLM's documentation; they name models
of the Hugging Face hub, and run with any other, such as `smollm2-135m-instruct`.

Images are in `multi_modal_data` as PIL images, arrays `[height, width, channels]` of uint8, or the bytes of files; a list has
several. Torch tensors are embeddings, with `enable_mm_embeds` ([requests.md](requests.md#embeddings-of-images-and-audio)).
`multi_modal_uuids` may name them, and an item that is `None` with a name is one that was seen. Messages have them as
`image_url` (`data:`, `file:` under `allowed_local_media_path`, `http:` and `https:` from `allowed_media_domains`) or as
`image_pil`. Pillow is needed only where a program makes PIL images. Audio is an array of samples, with its rate or at the
model's, a list of floats, or a file; messages have it as `input_audio` or `audio_url`.

A prompt of an encoder and a decoder (Whisper) has vLLM's form `{{"encoder_prompt": ..., "decoder_prompt": ...}}`, or is a
prompt of the decoder with `multi_modal_data`.

What differs on purpose: a larger `priority` is more urgent, unless `priority_order="low_first"` says what vLLM says
([requests.md](requests.md)). `sleep` keeps requests (`mode="keep"`) where vLLM aborts them. `n` above 1 at temperature 0 is
allowed. `abort_request` brings one last output with `finish_reason="abort"` from `step`. `stat_loggers` are told once every
10 s, and not at every step. `beam_search` scores the generated tokens, without the prompt's. Text parts of one message reach
every template joined by line breaks; with `chat_template_content_format="openai"` as they are. A message's role is OpenAI's, or
one that the chat template names.

Written by `tools/vllm_page.py` from the signatures of vLLM {version}. **Same**: the name and the meaning are vLLM's.
**Renamed**: the same under another name of Tetrad's. **No effect**: any value is taken, as it cannot change an answer.
**Refused**: only the default, and what asks for nothing, is taken; anything else raises an error that is a
`NotImplementedError` and a `ValueError`, and gives the reason stated here.
"""

_CLASSES: dict[str, type] = {
    "LLM": LLM,
    "LLMEngine": LLMEngine,
    "AsyncLLM": AsyncLLM,
    "EngineArgs": EngineArgs,
    "AsyncEngineArgs": AsyncEngineArgs,
    "SamplingParams": SamplingParams,
}

_INTERNAL = "vLLM's own code calls it, programs do not."
_ABSENT = {
    "LLMEngine.__init__": "Made by `from_engine_args`.",
    "AsyncLLM.__init__": "Made by `from_engine_args`.",
    "AsyncLLM.tokenizer": "It would block the event loop. `LLM.get_tokenizer` has it.",
    "AsyncLLM.get_tokenizer": "It would block the event loop. `LLM.get_tokenizer` has it.",
    **{
        f"EngineArgs.{name}": _INTERNAL
        for name in (
            "create_diffusion_config",
            "create_engine_config",
            "create_load_config",
            "create_logging_config",
            "create_model_config",
            "create_observability_config",
            "create_speculative_config",
            "create_structured_outputs_config",
            "create_watermark_config",
            "get_batch_defaults",
            "validate_tensorizer_args",
        )
    },
    **{
        f"SamplingParams.{name}": _INTERNAL
        for name in (
            "all_stop_token_ids",
            "bad_words_token_ids",
            "eos_token_id",
            "for_sampler_warmup",
            "num_logprobs",
            "sampling_type",
            "update_from_generation_config",
            "update_from_tokenizer",
            "verify",
        )
    },
}
"""Methods that Tetrad does not have -> the reason."""

_RENAMED = {"AsyncEngineArgs.add_cli_args.async_args_only": "All flags are added."}
"""Arguments of methods that Tetrad does not have -> the reason why they are not needed."""


_NOTES = {
    "lora_request": ("same", "Needs `enable_lora`."),
    "tokenization_kwargs": ("same", "It may have `add_special_tokens`, `truncate_prompt_tokens` and `truncation_side`."),
    "load_format": ("same", '"auto" and "dummy".'),
    "priority": ("same", "Larger is more urgent, unless `priority_order` says what vLLM says."),
    "logits_processors": ("same", "Classes that derive from AdapterLogitsProcessor; not those that change a whole batch."),
    "extra_args": (
        "same",
        "Needs `logits_processors`; `kv_transfer_params` needs `--kv-role` (docs/disaggregation.md).",
    ),
    "prompt_text": ("same", "Of a prompt of ids."),
}
"""Argument -> remark, for every method that has the argument."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The support of one vLLM name in Tetrad."""

    name: str
    kind: str
    why: str = ""

    def line(self) -> str:
        """Return the row as Markdown."""
        return f"| `{self.name}` | {self.kind} | {self.why} |"


def page() -> str:
    """Return the page."""
    signatures = json.loads(SIGNATURES.read_text())
    parts = [_INTRODUCTION.format(version=signatures["version"])]
    for name, cls in _CLASSES.items():
        parts.append(f"\n## {name}\n\n| name | here | why |\n|---|---|---|\n")
        parts.append("".join(row.line() + "\n" for row in _rows(name, cls, signatures[name])))
    parts.append("\n## EngineArgs of older versions\n\n| name | here | why |\n|---|---|---|\n")
    known = set(signatures["EngineArgs"]["__init__"])
    parts.append(
        "".join(_of(name, verdict).line() + "\n" for name, verdict in verdicts_of(EngineArgs).items() if name not in known)
    )
    parts.append("\n## SamplingParams of older versions\n\n| name | here | why |\n|---|---|---|\n")
    known = set(signatures["SamplingParams"]["__init__"])
    parts.append("".join(_of(name, each).line() + "\n" for name, each in SAMPLING_VERDICTS.items() if name not in known))
    return "".join(parts)


def _rows(class_name: str, cls: type, methods: dict[str, dict[str, Any]]) -> Iterator[Row]:
    for method, arguments in methods.items():
        where = f"{class_name}.{method}"
        if where in _ABSENT:
            yield Row(f"{method}()", "not there", _ABSENT[where])
            continue
        if method == "__init__":
            yield from (_argument(name, cls) for name in arguments)
            continue
        found = inspect.getattr_static(cls, method, None)
        if found is None:
            raise LookupError(f"{where} of vLLM is neither in Tetrad nor refused: add it to drop_in/missing_methods.py.")
        function = found.fget if isinstance(found, property) else getattr(cls, method)
        shown = method if isinstance(found, property) else f"{method}()"
        if hasattr(function, "why_missing"):
            yield Row(shown, "refused", _sentence(function.why_missing))
            continue
        yield Row(shown, "same")
        yield from (_argument_of(where, shown, function, name) for name in arguments)


def _argument(name: str, cls: type) -> Row:
    """Return the row of an argument of a constructor."""
    if name in _NOTES:
        return Row(name, *_NOTES[name])
    verdict = _verdicts(cls).get(name)
    if verdict is not None:
        return _of(name, verdict)
    if name not in _parameters(cls):
        raise LookupError(
            f"{cls.__name__}({name}=...) of vLLM has no verdict: add it to drop_in/ or frontend/request/foreign_sampling.py."
        )
    return Row(name, "same")


def _argument_of(where: str, shown: str, function: Any, name: str) -> Row:
    """Return the row of an argument of a method."""
    label = f"{shown[:-1]}{name}=)"
    if name in _NOTES:
        return Row(label, *_NOTES[name])
    verdict = getattr(function, "verdicts", {}).get(name)
    if where == "SamplingParams.from_optional":
        verdict = SAMPLING_VERDICTS.get(name)
    if verdict is not None:
        return _of(label, verdict)
    if f"{where}.{name}" in _RENAMED:
        return Row(label, "not there", _RENAMED[f"{where}.{name}"])
    parameters = inspect.signature(function).parameters
    if name in parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return Row(label, "same")
    raise LookupError(f"{where}({name}=...) of vLLM has no verdict: add it to the method's `takes`.")


def _verdicts(cls: type) -> dict[str, Verdict]:
    return SAMPLING_VERDICTS if cls is SamplingParams else verdicts_of(EngineArgs)


def _parameters(cls: type) -> set[str]:
    own = set(inspect.signature(cls).parameters)
    return own | {field.name for field in dataclasses.fields(EngineArgs)} if cls is LLM else own


def _of(name: str, verdict: Verdict) -> Row:
    if verdict.kind == "ignored":
        return Row(name, "no effect", verdict.why)
    if verdict.kind == "renamed":
        return Row(name, "renamed", verdict.why)
    taken = f" Taken: {', '.join(f'`{each!r}`' for each in (verdict.default, *verdict.others))}." if verdict.others else ""
    return Row(name, "refused", verdict.why + taken)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    sys.stdout.write(page())
