"""Registry: finds the family that describes a model, by the name of the architecture in Hugging Face's config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tetrad.services.errors import ModelError, one_line
from tetrad.worker_svc.families.alibi import bloom, mpt
from tetrad.worker_svc.families.cohere import cohere, cohere2
from tetrad.worker_svc.families.deepseek import deepseek_v2, deepseek_v3, glm4_moe_lite
from tetrad.worker_svc.families.experts import glm4_moe, gpt_oss, granite_moe, mixtral, olmoe
from tetrad.worker_svc.families.foreign import no_description
from tetrad.worker_svc.families.gemma import gemma, gemma2, gemma3
from tetrad.worker_svc.families.glm import glm, glm4
from tetrad.worker_svc.families.gpt import falcon, gpt2, gpt_neox, starcoder2
from tetrad.worker_svc.families.gpt_j import codegen, gpt_j, gpt_neo
from tetrad.worker_svc.families.layer_norm import nemotron, phi, stablelm
from tetrad.worker_svc.families.lfm2 import lfm2, lfm2_moe
from tetrad.worker_svc.families.limits import check_limits
from tetrad.worker_svc.families.llama import (
    arcee,
    ernie,
    exaone,
    granite,
    hunyuan,
    internlm3,
    llama,
    minicpm,
    ministral3,
    mistral,
    phi3,
    seed_oss,
    smollm3,
)
from tetrad.worker_svc.families.llama4 import llama4
from tetrad.worker_svc.families.mamba import bamba, falcon_h1, granite_hybrid, mamba2
from tetrad.worker_svc.families.mamba1 import falcon_mamba, jamba, mamba
from tetrad.worker_svc.families.nemotron_h import nemotron_h
from tetrad.worker_svc.families.plugins import find_plugin
from tetrad.worker_svc.families.pooling import generator_of
from tetrad.worker_svc.families.post_norm import exaone4, olmo2, olmo3
from tetrad.worker_svc.families.qwen import qwen2, qwen2_moe, qwen3, qwen3_moe
from tetrad.worker_svc.families.qwen_delta import qwen3_5, qwen3_5_moe, qwen3_next
from tetrad.worker_svc.families.values import Values, architecture_of
from tetrad.worker_svc.families.whisper import whisper
from tetrad.worker_svc.families.wrappers import wrapper
from tetrad.worker_svc.model_facts.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Family:
    """A family: models that the same function describes.

    Attributes:
        title: name of the family in documents.
        describe: returns the description of a model from the values of its config. Raises KeyError for a missing value.
    """

    title: str
    describe: Callable[[Values], ModelConfig]


FAMILIES: Mapping[str, Family] = {
    "ArceeForCausalLM": Family("AFM (Arcee)", arcee),
    "BambaForCausalLM": Family("Bamba", bamba),
    "BloomForCausalLM": Family("BLOOM", bloom),
    "CodeGenForCausalLM": Family("CodeGen", codegen),
    "Cohere2ForCausalLM": Family("Command A, Command R7B", cohere2),
    "CohereForCausalLM": Family("Command R, R+", cohere),
    "DeepseekV2ForCausalLM": Family("DeepSeek V2", deepseek_v2),
    "DeepseekV3ForCausalLM": Family("DeepSeek V3, R1", deepseek_v3),
    "Ernie4_5ForCausalLM": Family("ERNIE 4.5", ernie),
    "ExaoneForCausalLM": Family("EXAONE 3", exaone),
    "Exaone4ForCausalLM": Family("EXAONE 4", exaone4),
    "FalconH1ForCausalLM": Family("Falcon-H1", falcon_h1),
    "FalconForCausalLM": Family("Falcon", falcon),
    "FalconMambaForCausalLM": Family("Falcon Mamba", falcon_mamba),
    "Gemma2ForCausalLM": Family("Gemma 2", gemma2),
    "Gemma3ForCausalLM": Family("Gemma 3 (text)", gemma3),
    "GemmaForCausalLM": Family("Gemma 1", gemma),
    "Glm4ForCausalLM": Family("GLM-4-0414", glm4),
    "Glm4MoeForCausalLM": Family("GLM-4.5, 4.6", glm4_moe),
    "Glm4MoeLiteForCausalLM": Family("GLM-4.7 Flash", glm4_moe_lite),
    "GlmForCausalLM": Family("GLM-4", glm),
    "GPT2LMHeadModel": Family("GPT-2", gpt2),
    "GPTJForCausalLM": Family("GPT-J", gpt_j),
    "GPTNeoForCausalLM": Family("GPT-Neo", gpt_neo),
    "GPTNeoXForCausalLM": Family("GPT-NeoX, Pythia", gpt_neox),
    "GptOssForCausalLM": Family("gpt-oss", gpt_oss),
    "GraniteForCausalLM": Family("Granite 3", granite),
    "GraniteMoeForCausalLM": Family("Granite 3 MoE", granite_moe),
    "GraniteMoeHybridForCausalLM": Family("Granite 4", granite_hybrid),
    "HunYuanDenseV1ForCausalLM": Family("Hunyuan (dense)", hunyuan),
    "InternLM3ForCausalLM": Family("InternLM3", internlm3),
    "JambaForCausalLM": Family("Jamba", jamba),
    "Lfm2ForCausalLM": Family("LFM2", lfm2),
    "Lfm2MoeForCausalLM": Family("LFM2 MoE", lfm2_moe),
    "Llama4ForCausalLM": Family("Llama 4 (text)", llama4),
    "LlamaForCausalLM": Family("Llama 2 and 3", llama),
    "Mamba2ForCausalLM": Family("Mamba2, Codestral Mamba", mamba2),
    "MambaForCausalLM": Family("Mamba", mamba),
    "MiniCPMForCausalLM": Family("MiniCPM 1, 2, 4", minicpm),
    "Ministral3ForCausalLM": Family("Ministral 3", ministral3),
    "MinistralForCausalLM": Family("Ministral", mistral),
    "MistralForCausalLM": Family("Mistral", mistral),
    "MixtralForCausalLM": Family("Mixtral", mixtral),
    "MPTForCausalLM": Family("MPT", mpt),
    "MptForCausalLM": Family("MPT", mpt),
    "NemotronHForCausalLM": Family("Nemotron-H, Nemotron 3", nemotron_h),
    "NemotronForCausalLM": Family("Nemotron-4, Minitron", nemotron),
    "Olmo2ForCausalLM": Family("OLMo 2", olmo2),
    "Olmo3ForCausalLM": Family("OLMo 3", olmo3),
    "OlmoeForCausalLM": Family("OLMoE", olmoe),
    "Phi3ForCausalLM": Family("Phi-3, Phi-4", phi3),
    "PhiForCausalLM": Family("Phi-1, Phi-2", phi),
    "Qwen2ForCausalLM": Family("Qwen2, Qwen2.5", qwen2),
    "Qwen2MoeForCausalLM": Family("Qwen1.5 MoE, Qwen2 MoE", qwen2_moe),
    "Qwen3ForCausalLM": Family("Qwen3", qwen3),
    "Qwen3MoeForCausalLM": Family("Qwen3 MoE", qwen3_moe),
    "Qwen3NextForCausalLM": Family("Qwen3-Next", qwen3_next),
    "Qwen3_5ForCausalLM": Family("Qwen3.5", qwen3_5),
    "Qwen3_5MoeForCausalLM": Family("Qwen3.5 MoE", qwen3_5_moe),
    "SeedOssForCausalLM": Family("Seed-OSS", seed_oss),
    "SmolLM3ForCausalLM": Family("SmolLM3", smollm3),
    "StableLmForCausalLM": Family("StableLM", stablelm),
    "Starcoder2ForCausalLM": Family("StarCoder 2", starcoder2),
}

WRAPPERS: Mapping[str, Family] = {
    "AudioFlamingo3ForConditionalGeneration": Family("Audio Flamingo 3", wrapper("qwen2")),
    "Gemma3ForConditionalGeneration": Family("Gemma 3", wrapper("gemma3_text", is_tied=True)),
    "Glm46VForConditionalGeneration": Family("GLM-4.6V Flash", wrapper("glm4v_text")),
    "Glm4vForConditionalGeneration": Family("GLM-4.1V", wrapper("glm4v_text")),
    "Glm4vMoeForConditionalGeneration": Family("GLM-4.5V, 4.6V", wrapper("glm4v_moe_text")),
    "GlmAsrForConditionalGeneration": Family("GLM-ASR", wrapper("llama", is_tied=True)),
    "Idefics3ForConditionalGeneration": Family("Idefics 3", wrapper("llama")),
    "InternVLForConditionalGeneration": Family("InternVL 2.5, 3", wrapper("qwen2", is_tied=True)),
    "Lfm2VlForConditionalGeneration": Family("LFM2-VL", wrapper("lfm2", is_tied=True)),
    "Llama4ForConditionalGeneration": Family("Llama 4", wrapper("llama4_text")),
    "LlavaForConditionalGeneration": Family("LLaVA", wrapper("llama")),
    "LlavaNextForConditionalGeneration": Family("LLaVA-NeXT", wrapper("llama")),
    "LlavaOnevisionForConditionalGeneration": Family("LLaVA-OneVision", wrapper("qwen2")),
    "Mistral3ForConditionalGeneration": Family("Mistral Small 3.1, Ministral 3", wrapper("mistral", is_tied=True)),
    "Qwen2AudioForConditionalGeneration": Family("Qwen2-Audio", wrapper("qwen2")),
    "Qwen2VLForConditionalGeneration": Family("Qwen2-VL", wrapper("qwen2_vl_text")),
    "Qwen2_5_VLForConditionalGeneration": Family("Qwen2.5-VL", wrapper("qwen2_5_vl_text")),
    "Qwen3_5ForConditionalGeneration": Family("Qwen3.5", wrapper("qwen3_5_text")),
    "Qwen3_5MoeForConditionalGeneration": Family("Qwen3.5 MoE", wrapper("qwen3_5_moe_text")),
    "Qwen3ASRForConditionalGeneration": Family("Qwen3-ASR", wrapper("qwen3", is_tied=True)),
    "Qwen3VLForConditionalGeneration": Family("Qwen3-VL", wrapper("qwen3_vl_text", is_deep=True)),
    "Qwen3VLMoeForConditionalGeneration": Family("Qwen3-VL MoE", wrapper("qwen3_vl_moe_text", is_deep=True)),
    "SmolVLMForConditionalGeneration": Family("SmolVLM", wrapper("llama")),
}
"""Models that also read images, videos or audio; their text model is described."""
ENCODER_DECODERS: Mapping[str, Family] = {"WhisperForConditionalGeneration": Family("Whisper", whisper)}
"""Models with an encoder whose output the decoder attends to; the decoder is described."""
_LIKE_LLAMA = FAMILIES["LlamaForCausalLM"]


def find_family(architecture: str) -> Family | None:
    """Return the family of an architecture, from the registry or a plug-in; None if there is none."""
    known = FAMILIES.get(architecture) or WRAPPERS.get(architecture) or ENCODER_DECODERS.get(architecture)
    if known is not None:
        return known
    describe = find_plugin(architecture)
    if describe is not None:
        return Family(architecture, describe)
    variant = generator_of(architecture, FAMILIES)
    return None if variant is None else _variant(FAMILIES[variant[0]])


def _variant(family: Family) -> Family:
    """Return the family of the pooling variants, which have no output layer."""
    return Family(family.title, lambda values: replace(family.describe(values), tie_word_embeddings=True))


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Return the description of a config.json's model; a model of an unknown architecture is described like a Llama."""
    return _described(find_family(architecture_of(config)) or _LIKE_LLAMA, config)


def supported_config(config: Mapping[str, Any]) -> ModelConfig:
    """Return the description of a model by its family or plug-in; raise ModelError if it has none."""
    family = find_family(architecture_of(config))
    if family is None:
        raise no_description(config)
    return _described(family, config)


def _described(family: Family, config: Mapping[str, Any]) -> ModelConfig:
    values = Values(config)
    try:
        facts = family.describe(values)
        values.check_all_read()
    except KeyError as error:
        raise ModelError(f"The model's config has no {error.args[0]!r}.") from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ModelError(f"The model's config cannot be read: {one_line(error)}.") from error
    check_limits(facts)
    return facts
