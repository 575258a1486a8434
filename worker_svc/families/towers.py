"""Towers: the architectures whose vision or audio model this worker runs, so that their prompts can have media.

Imports no torch.
"""

READS_IMAGES = frozenset(
    {
        "Gemma3ForConditionalGeneration",
        "Glm46VForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Idefics3ForConditionalGeneration",
        "InternVLForConditionalGeneration",
        "Lfm2VlForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
    }
)
"""The keys of TOWER_KINDS in media/tower_kinds.py."""

READS_VIDEOS = frozenset(
    {
        "Glm46VForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "InternVLForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
    }
)
"""The keys of VIDEO_KINDS in media/video_kinds.py."""

READS_AUDIO = frozenset(
    {
        "AudioFlamingo3ForConditionalGeneration",
        "GlmAsrForConditionalGeneration",
        "Qwen2AudioForConditionalGeneration",
        "Qwen3ASRForConditionalGeneration",
    }
)
"""The keys of AUDIO_KINDS in media/audio_reader.py."""


ATTENDS_TO_AUDIO = frozenset({"WhisperForConditionalGeneration"})
"""The architectures with an encoder of audio whose output the decoder attends to (cross-attention)."""


def media_read_by(architecture: str) -> tuple[str, ...]:
    """Return the modalities of the items in prompts of models of an architecture."""
    found = {"image": READS_IMAGES, "video": READS_VIDEOS, "audio": READS_AUDIO | ATTENDS_TO_AUDIO}
    return tuple(modality for modality, names in found.items() if architecture in names)
