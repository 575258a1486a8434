"""Towers: the architectures whose vision model this worker runs, so that their prompts can have images, and videos.

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

LISTENS = frozenset({"WhisperForConditionalGeneration"})
"""The architectures with an encoder of audio whose output the decoder attends to (cross-attention)."""

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
