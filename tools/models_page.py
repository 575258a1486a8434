"""Writes docs/models.md from the registry of families: `python tools/models_page.py > docs/models.md`.

The differences of a family from Llama are derived from the defaults of its config class in transformers, and the program that
runs it on a device from the traits that the programs support. A test compares the page with this output.
"""

from collections.abc import Iterator
from typing import Any

from tetrad.tokenizer_svc.media.images.families.table import FAMILIES as PREPROCESSED
from tetrad.tokenizer_svc.media.video.families import FAMILIES as WITH_VIDEOS
from tetrad.worker_svc.checkpoint.gguf_architectures import ARCHITECTURES as GGUF
from tetrad.worker_svc.cuda.decoder import TRAITS as KERNEL_TRAITS
from tetrad.worker_svc.cuda.torch_attention import MAX_HEAD_DIM
from tetrad.worker_svc.devices.decoder_pooling import TASKS_OF_CLASSIFIERS
from tetrad.worker_svc.families.encoders import ENCODERS, family_of
from tetrad.worker_svc.families.pooling import KINDS, generator_of
from tetrad.worker_svc.families.registry import ENCODER_DECODERS, FAMILIES, WRAPPERS, read_config
from tetrad.worker_svc.media.audio_reader import AUDIO_KINDS
from tetrad.worker_svc.media.tower_kinds import TOWER_KINDS
from tetrad.worker_svc.media.video_kinds import VIDEO_KINDS
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.quantization import CHECKPOINT_METHODS
from tetrad.worker_svc.model_facts.tensor_names import Stored
from tetrad.worker_svc.model_facts.traits import Trait, traits_of
from tetrad.worker_svc.native.decoder import TRAITS as NATIVE_TRAITS
from tetrad.worker_svc.quantization.online import ONLINE

_PAGE = """# Models

Written by `tools/models_page.py` from the registry of families, [registry.py](../worker_svc/families/registry.py).

A family is a description of its models: what each layer is made of, and where a checkpoint has its tensors. Programs are built
from it. On the CPU the native program ([kernels.md](kernels.md)) and on a GPU the kernels' program ([cuda.md](cuda.md)) compute
the descriptions whose traits they know; every other model runs through the torch decoder on that device, slower and with the
same tokens. The worker's log line `model.runs_on_torch` names the traits. The table shows models with the usual values of their
family's config.

- **CPU, GPU**: the program that runs it.
- **GGUF**: the architecture of GGUF files that are read as this family.
- **Quantizations, CPU**: `int8` at load, with the native program alone; a GGUF file's own types, and quantized checkpoints
  ({methods}). Of families that have all experts of a layer in one
  tensor, quantized checkpoints have each expert by itself (Llama 4, gpt-oss, which is published in `mxfp4`) or in a stack of
  `compressed-tensors` (Granite). The native program multiplies quanta. Torch leaves experts to the native kernels,
  which multiply their quanta, and dequantizes all other weights to float32 at load, with `dtype=float32` or without kernels all
  weights; the worker's log line `weights.dequantized` has the size of the files and that in memory.
  Of compressed-tensors, `pack-quantized`, `int-quantized`, `naive-quantized`, `float-quantized`,
  `mxfp4-pack-quantized` and `nvfp4-pack-quantized` are read, and lists of matrices to `ignore`; of ModelOpt, fp8 with a scale
  for a matrix or a row, and NVFP4, also where `hf_quant_config.json` alone describes them.
  A checkpoint quantizes weights alone here: its values for activations, dynamic
  or static, are not used ([kernels.md](kernels.md) says how activations are rounded). Sparse weights and transforms of
  activations are refused by name.
- **Quantizations, GPU**: {online} at load, and the same quantized checkpoints. Weights of 4 bits, fp8 and symmetric int8 keep
  their bits on the device, also in experts; a GGUF file and asymmetric int8 become floats.
- **LoRA**: the devices on which adapters ([lora.md](lora.md)) change all matrices of a model, but those that are named.
- **Pooling**: the devices on which a model makes embeddings, classes and scores ([pooling.md](pooling.md)).

A family is added as a function in [worker_svc/families](../worker_svc/families), an entry of the registry, and a tiny model in
[tiny_models.py](../tests/worker_svc/families/tiny_models.py), whose tokens a test compares with those of transformers.

A config with a value that changes results and that its family does not read is refused in one line, and so are a tensor that is
missing or has another shape, and a tensor that nothing reads.

No context is longer than `max_position_embeddings`, and a rotary embedding depends on the config alone, never on the requests
that run together. So a `rope_scaling` of type `dynamic` has the frequencies that transformers uses up to this length, which are
not scaled (but by Hunyuan's `alpha`); vLLM serves `factor` times as long contexts, and scales all. `longrope` has its factors
for long contexts wherever `max_position_embeddings` is larger than `original_max_position_embeddings`, for short prompts as
well.

Linear biases of scores (ALiBi) are float32, as in vLLM, and depend on the distance of a key alone. transformers rounds those of
Falcon to bfloat16, so its tokens may differ. Of MPT it does not use `alibi_bias_max`, `no_bias` and `logit_scale`, which are
used here as in MosaicML's code; `MPTForCausalLM` is the name in that code, and in the files that MosaicML publishes.

| family | architecture | CPU | GPU | GGUF | quantizations, CPU | quantizations, GPU | LoRA | pooling | beyond Llama |
|---|---|---|---|---|---|---|---|---|---|
"""
_OTHERS = """
## Other models

Any other causal model of [transformers](https://huggingface.co/docs/transformers) runs through transformers' own modelling
code, over Tetrad's KV pages and with its sampler ([transformers_backend](../worker_svc/models/transformers_backend)): slower
than a family, with the same tokens. On the CPU device its weights are float32; on a GPU they have the type of `--dtype`,
attention runs in Tetrad's kernels where they support its heads, and steps are not recorded as graphs. Such a model takes no
quantized weights and no adapters, and runs on one worker. The worker's log line `model.runs_on_transformers` says so. At load
the worker compares the logits over KV pages with those of the model's own attention, on sequences that are computed in chunks.
A model that needs more than attention over keys and values (cross-attention, states, alibi, masks of its own), or whose code
does not call attention through transformers' `AttentionInterface`, is refused in one line with the reason.

A checkpoint that brings its own code (`auto_map` in its config.json) runs only with `--trust-remote-code`, or
`LLM(model, trust_remote_code=True)`. The code then runs in the worker, with the rights of the worker's user; no other service
imports it. The tokenizer needs files that are read without code, such as tokenizer.json.

## Plug-ins

An installed package adds a family by an entry point of the group `tetrad.models`: the architecture's name, as config.json has
it, and a function like those of [worker_svc/families](../worker_svc/families). A family of the table cannot be replaced. Every
device runs the description as it runs the others. This package adds InternLM2, a Llama with fused queries, keys and values:

```toml
# pyproject.toml
[project]
name = "tetrad-internlm2"
version = "1.0"

[project.entry-points."tetrad.models"]
InternLM2ForCausalLM = "tetrad_internlm2:internlm2"
```

```python
# tetrad_internlm2.py
from dataclasses import replace

from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames


def internlm2(values: Values) -> ModelConfig:
    config = decoder(values)  # Llama with the sizes of config.json
    dim, groups = config.head_dim, config.num_kv_heads
    queries = config.num_heads // groups * dim
    size = queries + 2 * dim  # rows of a group in the fused matrix: queries, keys, values
    in_layer = {
        "self_attn.q_proj": Stored("attention.wqkv", rows=Rows(groups, size, 0, queries)),
        "self_attn.k_proj": Stored("attention.wqkv", rows=Rows(groups, size, queries, queries + dim)),
        "self_attn.v_proj": Stored("attention.wqkv", rows=Rows(groups, size, queries + dim, size)),
        "self_attn.o_proj": Stored("attention.wo"),
        "mlp.gate_proj": Stored("feed_forward.w1"),
        "mlp.up_proj": Stored("feed_forward.w3"),
        "mlp.down_proj": Stored("feed_forward.w2"),
        "input_layernorm": Stored("attention_norm"),
        "post_attention_layernorm": Stored("ffn_norm"),
    }
    in_model = {"model.embed_tokens": Stored("model.tok_embeddings"), "lm_head": Stored("output")}
    return replace(config, tensors=TensorNames(in_layer=in_layer, in_model=in_model))
```
"""
_WRAPPERS = """
## Models that read images

Their text model runs as its family does on each device. The vision model of those that read images here is transformers' own
class; it encodes images beside the steps of other requests ([requests.md](requests.md#images),
[worker_svc/media](../worker_svc/media)). Of the others the text model alone is served, and a request with an image is refused
in one line, also if the files of a model have no `preprocessor_config.json`. Other `...ForConditionalGeneration` models whose
text model transformers has, such as Gemma 4, run as [other models](#other-models) do.

Models that read videos take them in the same way ([requests.md](requests.md#videos)); a video is encoded frame by frame.
Models that read audio ([requests.md](requests.md#audio)) run transformers' audio model on windows of some seconds.

| family | architecture | images | videos | audio |
|---|---|---|---|---|
"""
_ENCODER_DECODERS = """
## Models with an encoder and a decoder

| family | architecture | encoder |
|---|---|---|
{rows}
A prompt of such a model has one item of media, without a placeholder: every token of the prompt and of the answer attends to
the encoder's output. Recordings of any length become text by [speech.md](speech.md); the library also takes 30 seconds of audio
and the decoder's prompt as they are, in both of vLLM's forms:

```python
start = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
llm.generate({{"prompt": start, "multi_modal_data": {{"audio": audio}}}})
llm.generate({{"encoder_prompt": {{"prompt": "", "multi_modal_data": {{"audio": audio}}}}, "decoder_prompt": start}})
```

A prompt without the start token gets it, and a text has no other special tokens than those it is written with. The encoder is
transformers' own class. Its output becomes keys and values of all layers once, which requests with the same audio share, and
which stay in the encoder cache while one of them runs. They share memory with the KV cache: Whisper large-v3 has 469 MiB of
them for an audio beside 140 MiB for 448 tokens, in float32. `encoded_items` in the engine core's log line `kv_cache.planned` is
the number of different audios whose requests run together; the next ones wait. The prefix cache has blocks by audio and tokens.

These models run on one worker with the CPU device, by the torch decoder, in float32. Adapters, `int8`, models that draft
(n-grams do) and pooling are refused in one line.
"""
_GRANITE = {"embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0}
_NEEDED: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "GraniteForCausalLM": _GRANITE,
    "GraniteMoeForCausalLM": _GRANITE,
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"] * 16},
    "MinistralForCausalLM": {"head_dim": 128},
}
"""Config values for which a config class has no default, or a default that no model has."""
_WITHOUT_CLASS: dict[str, dict[str, Any]] = {
    "ExaoneForCausalLM": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 102400,
        "max_position_embeddings": 4096,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "silu",
    },
    "InternLM3ForCausalLM": {
        "hidden_size": 4096,
        "intermediate_size": 10240,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "vocab_size": 128512,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
    },
    "MPTForCausalLM": {"d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048, "vocab_size": 50432},
    "MiniCPMForCausalLM": {
        "hidden_size": 2304,
        "intermediate_size": 5760,
        "num_hidden_layers": 40,
        "num_attention_heads": 36,
        "vocab_size": 122753,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    },
}
"""Config values of models for which transformers has no config class."""


_POOLING = """
## Models that pool

Encoders and decoders make embeddings, classes and scores ([pooling.md](pooling.md)) on the CPU and on the CUDA device. Encoders
run by [encoder.py](../worker_svc/models/encoder.py), on the CPU in float32 and with native kernels where there are any. Every
decoder of the table above pools by its program on that device: as an embedder, with `--runner pooling` or with a `modules.json`
beside its weights, and as the variants below. With `--runner generate --convert embed` it generates and embeds.

| architecture of a decoder ends in | tasks |
|---|---|
{variants}
| encoder | architectures |
|---|---|
"""
_TASKS_OF_KINDS = {"embed": ("embed", "token_embed"), **TASKS_OF_CLASSIFIERS}


NOT_ADAPTED_OF = {Trait.EXPERTS: "routers, experts on the GPU", Trait.LATENT: "`kv_b_proj`"}
"""Trait of a model -> its parts that LoRA adapters do not change."""


def page() -> str:
    """Return docs/models.md."""
    rows = sorted(_row(architecture) for architecture in FAMILIES)
    encoders = [f"| {family} | {_listed(names)} |\n" for family, names in _encoders().items()]
    return "".join(
        [
            _PAGE.format(online=_listed(sorted(ONLINE)), methods=_listed(CHECKPOINT_METHODS)),
            *rows,
            _WRAPPERS,
            *_wrapper_rows(),
            _ENCODER_DECODERS.format(rows=_encoder_decoders()),
            _OTHERS,
            _POOLING.format(variants=_variants()),
            *encoders,
        ]
    )


def _encoder_decoders() -> str:
    return "".join(f"| {family.title} | `{name}` | audio |\n" for name, family in sorted(ENCODER_DECODERS.items()))


def _variants() -> str:
    return "".join(f"| `{end}` | {_listed(_TASKS_OF_KINDS[kind])} |\n" for end, kind in KINDS.items())


def _wrapper_rows() -> list[str]:
    rows = (
        (family.title, f"`{architecture}`", _images(architecture), _videos(architecture), _audio(architecture))
        for architecture, family in WRAPPERS.items()
    )
    return sorted(f"| {' | '.join(cells)} |\n" for cells in rows)


def _images(architecture: str) -> str:
    if not _reads_images(architecture):
        return "refused"
    return "read on the CPU" if TOWER_KINDS[architecture].is_whole else "read"


def _videos(architecture: str) -> str:
    return "read" if architecture in VIDEO_KINDS and not _model_types(architecture).isdisjoint(WITH_VIDEOS) else "refused"


def _audio(architecture: str) -> str:
    return "read" if architecture in AUDIO_KINDS else "refused"


def _reads_images(architecture: str) -> bool:
    """Return whether both the worker and the tokenizer read images of an architecture."""
    return architecture in TOWER_KINDS and not _model_types(architecture).isdisjoint(PREPROCESSED)


def _model_types(architecture: str) -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return {kind for kind, name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items() if name == architecture}


def _encoders() -> dict[str, list[str]]:
    """Return family -> architectures of encoders."""
    found: dict[str, list[str]] = {}
    for architecture in ENCODERS:
        found.setdefault(family_of(architecture), []).append(architecture)
    return found


def _row(architecture: str) -> str:
    config = _usual_config(architecture)
    traits = traits_of(config)
    on_gpu = "kernels" if traits <= KERNEL_TRAITS and config.head_dim <= MAX_HEAD_DIM else "torch"
    is_native, checkpoints = traits <= NATIVE_TRAITS, _quantized_checkpoints(config)
    gguf = [name for name, known in GGUF.items() if architecture in (*known.names, known.mixture)]
    cells = (
        FAMILIES[architecture].title,
        f"`{architecture}`",
        "native" if is_native else "torch",
        on_gpu,
        ", ".join(f"`{name}`" for name in gguf) or "–",
        ", ".join(_on_host(is_native=is_native, has_gguf=bool(gguf), checkpoints=checkpoints)) or "–",
        f"at load, {checkpoints}" if checkpoints else "at load",
        _loras(config),
        "CPU, GPU" if generator_of(_pooling_variant(architecture), FAMILIES) else "–",
        ", ".join(sorted(traits)) or "–",
    )
    return f"| {' | '.join(cells)} |\n"


def _loras(config: ModelConfig) -> str:
    kept = sorted(NOT_ADAPTED_OF[trait] for trait in traits_of(config) & set(NOT_ADAPTED_OF))
    return f"CPU, GPU; not {', '.join(kept)}" if kept else "CPU, GPU"


def _pooling_variant(architecture: str) -> str:
    """Return the name of an architecture's variant for pooling; `architecture` is one that generates."""
    stem = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return f"{stem}ForSequenceClassification"


def _on_host(*, is_native: bool, has_gguf: bool, checkpoints: str) -> Iterator[str]:
    if is_native:
        yield "int8"
    if has_gguf:
        yield "GGUF"
    if checkpoints:
        yield checkpoints


def _usual_config(architecture: str) -> ModelConfig:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if architecture in _WITHOUT_CLASS:
        return read_config(_WITHOUT_CLASS[architecture] | {"architectures": [architecture]})
    # If several model types have one architecture, the first ones are models that contain a text model.
    [*_, model_type] = [kind for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == architecture]
    values = CONFIG_MAPPING[model_type](**_NEEDED.get(architecture, {})).to_dict()
    return read_config(values | {"architectures": [architecture]})


def _quantized_checkpoints(config: ModelConfig) -> str:
    """Return the kinds of quantized checkpoints that are read; "": none."""
    places = [_places(stored) for name, stored in config.tensors.in_layer.items() if ".experts." in name]
    if all(any(not place.is_stacked for place in each) for each in places):
        return "checkpoints"
    # Names of the parts of stacked weights begin with the name of the stack.
    return "`compressed-tensors`" if all(place.weight for each in places for place in each) else ""


def _places(stored: Stored | None) -> list[Stored]:
    return [] if stored is None else [stored, *_places(stored.otherwise)]


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - what this program is for
