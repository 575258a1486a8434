"""Video kind: finds the video processor's settings of a model and the rules of its family. Called once, at start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tetrad.services.models.video_files import video_settings
from tetrad.tokenizer_svc.media.items import Marks
from tetrad.tokenizer_svc.media.kinds import MediaKind, MediaRules, ProcessLimits
from tetrad.tokenizer_svc.media.model_files import ModelFiles
from tetrad.tokenizer_svc.media.video.families import VideoFamily, VideoModel, family_of
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_MODULE = "tetrad.tokenizer_svc.media.video.video_process"
_NUM_FRAMES = 32
_IO_KWARGS = ("num_frames", "fps", "frames_indices", "total_num_frames", "duration")
_READ = ("size", "min_pixels", "max_pixels", "do_resize", "resample", "patch_size", "temporal_patch_size", "merge_size")


@dataclass(frozen=True)
class VideoOptions:
    """What an operator chooses for videos.

    Attributes:
        limits: limits of one video.
        max_items: maximum number of videos of a prompt.
        max_pixels: maximum number of pixels of a frame.
        max_frames: maximum number of frames that are read of a video.
        io_kwargs: "num_frames" and "fps" of videos whose request has no others.
    """

    limits: ProcessLimits = field(default_factory=ProcessLimits)
    max_items: int = 999
    max_pixels: int = 178_956_970
    max_frames: int = 768
    io_kwargs: Mapping[str, Any] = field(default_factory=dict)


def video_kind(tokenizer: Tokenizer, options: VideoOptions) -> MediaKind | None:
    """Return how a model takes videos; None: it takes none."""
    files = ModelFiles(tokenizer)
    family = family_of(files)
    given = video_settings(files.processor, files.video_processor, files.image_processor)
    if family is None or not given:
        return None
    read = {name: given[name] for name in (*_READ, "max_image_size") if given.get(name) is not None}
    sampling = {"num_frames": _NUM_FRAMES, "fps": family.fps, **_old_sampling(given, read), **options.io_kwargs}
    return MediaKind(
        modality="video",
        module=_MODULE,
        arguments={
            "settings": {"do_resize": True, **family.settings, **read},
            "rule": family.rule,
            "in_grid": family.rule.endswith("in grid"),
            "sampling": {**sampling, "least_frames": family.least_frames},
            "max_pixels": options.max_pixels,
            "max_frames": options.max_frames,
        },
        kwargs=family.kwargs,
        io_kwargs=_IO_KWARGS,
        limits=options.limits,
        max_items=options.max_items,
        rules=partial(_rules, tokenizer, family),
    )


def _old_sampling(given: Mapping[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling that SmolVLM2's files have; their size of videos replaces that of images in `read`."""
    sampling = given.get("video_sampling")
    if not isinstance(sampling, dict):
        return {}
    if isinstance(sampling.get("video_size"), dict):
        read["size"] = sampling["video_size"]
    return {"fps": sampling["fps"]} if isinstance(sampling.get("fps"), (int, float)) else {}


def _rules(tokenizer: Tokenizer, family: VideoFamily, settings: Mapping[str, Any]) -> MediaRules:
    model = VideoModel(tokenizer, settings, family.keys)
    return MediaRules(
        modality="video",
        settings=settings,
        marks=Marks(family.placeholder, model.mark, model.mark_id),
        message_text=f"{family.before}{family.placeholder}{family.behind}",
        max_embeds=family.max_embeds(model),
        expand=partial(family.expand, model),
        grid=partial(family.grid, model),
        time_step=partial(family.time_step, model),
    )
