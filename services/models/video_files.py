"""Video files: the settings of a model's video processor, which may be in three of its files, and of its image processor.

Knows no families.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tetrad.services.models.model_directory import read_model_json

MOST_VIDEO_EMBEDS = 24_576
"""Maximum number of embeddings of a video, if the model's files allow more: the encoder cache has room for one such video."""
VIDEO_FILE, IMAGE_FILE, PROCESSOR_FILE = "video_preprocessor_config.json", "preprocessor_config.json", "processor_config.json"


def read_video_settings(directory: Path) -> Mapping[str, Any]:
    """Return the settings of a model's video processor; empty if no file has any. Raises ModelError for unreadable files."""
    files = {name: read_model_json(directory, name) or {} for name in (PROCESSOR_FILE, VIDEO_FILE, IMAGE_FILE)}
    return video_settings(files[PROCESSOR_FILE], files[VIDEO_FILE], files[IMAGE_FILE])


def read_image_settings(directory: Path) -> Mapping[str, Any]:
    """Return the settings of a model's image processor; empty if no file has any. Raises ModelError for unreadable files."""
    inner = (read_model_json(directory, PROCESSOR_FILE) or {}).get("image_processor")
    return inner if isinstance(inner, dict) else read_model_json(directory, IMAGE_FILE) or {}


def video_settings(processor: Mapping[str, Any], video: Mapping[str, Any], image: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings among the contents of a model's files, as transformers chooses them.

    Args:
        processor: processor_config.json, with "video_processor", or "image_processor" for both, in files of newer models.
        video: video_preprocessor_config.json.
        image: preprocessor_config.json, which has the settings for both in files of older models.
    """
    inner, of_images = processor.get("video_processor"), processor.get("image_processor")
    if isinstance(inner, dict):
        return inner
    return video or image or (of_images if isinstance(of_images, dict) else {})
