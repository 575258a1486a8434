"""FurtherModel: the settings of a further model of a frontend: its names, services and sampling defaults.

All models of a frontend share the other settings, such as limits and keys. The types of the fields are also those of the first
model's settings (config.py).
"""

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from tetrad.frontend.media.items import MODALITIES
from tetrad.frontend.net.discovery import check_target
from tetrad.frontend.parsing.registry import REASONING_FORMATS, TOOL_FORMATS, Format, choose_format
from tetrad.frontend.request.sampling_defaults import read_override
from tetrad.services.errors import InvalidRequest
from tetrad.services.models.template_variables import RESERVED_VARIABLES
from tetrad.services.settings import Names


def _checked_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the addresses of services; ValueError for an invalid address."""
    for target in targets:
        try:
            check_target(target)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
    return targets


def _checked_modules(modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return LoRA adapters; ValueError for one that has no name or no path."""
    for module in modules:
        name, _, path = module.partition("=")
        if not name or not path:
            raise ValueError(f"must be NAME=PATH, got {module[:80]!r}")
    return modules


def media_loras(text: str) -> dict[str, str]:
    """Return the path of the adapter of each modality; ValueError for another form than those of `--default-mm-loras`."""
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError('must be a JSON object such as {"audio": "/adapters/audio"}')  # noqa: TRY004 - pydantic takes no TypeError
    for modality, path in given.items():
        if modality not in MODALITIES:
            raise ValueError(f"has the modality {modality[:64]!r}; there are {', '.join(MODALITIES)}")
        if not isinstance(path, str) or not path:
            raise ValueError(f"must have the path of an adapter for {modality}, got {path!r:.64}")
    return given


def _checked_media_loras(text: str) -> str:
    media_loras(text)
    return text


def modules_of(lora_modules: Sequence[str], default_mm_loras: str) -> tuple[str, ...]:
    """Return all adapters of a model's settings, as NAME=PATH: those of modalities have their names."""
    return (*lora_modules, *(f"{modality}={path}" for modality, path in media_loras(default_mm_loras).items()))


def _checked_defaults(override: str) -> str:
    """Return sampling defaults, a JSON object as text; ValueError for an invalid one."""
    try:
        read_override(override)
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    return override


def _checked_variables(text: str) -> str:
    """Return variables of a template, a JSON object as text; ValueError if they are none, or have a reserved name."""
    try:
        variables = json.loads(text or "{}")
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict):
        raise ValueError("must be a JSON object")  # noqa: TRY004 - pydantic takes no TypeError
    if reserved := RESERVED_VARIABLES & variables.keys():
        raise ValueError(f"sets {min(reserved)!r}, which is an argument of rendering and no further variable")
    return text


def _checked_format(formats: Sequence[Format], name: str) -> str:
    try:
        choose_format(formats, name, "")
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    return name


Targets = Annotated[Names, AfterValidator(_checked_targets)]
"""Addresses of services."""
LoraModules = Annotated[Names, AfterValidator(_checked_modules)]
"""LoRA adapters, as NAME=PATH."""
MediaLoras = Annotated[str, AfterValidator(_checked_media_loras)]
"""LoRA adapters by modality, a JSON object as text."""
ToolParser = Annotated[str, AfterValidator(functools.partial(_checked_format, TOOL_FORMATS))]
"""Name of a format of tool calls."""
ReasoningParser = Annotated[str, AfterValidator(functools.partial(_checked_format, REASONING_FORMATS))]
"""Name of a format of reasoning."""
SamplingDefaults = Annotated[str, AfterValidator(_checked_defaults)]
"""Sampling defaults, a JSON object as text."""

TemplateVariables = Annotated[str, AfterValidator(_checked_variables)]
"""Variables of a chat template, a JSON object as text."""


class FurtherModel(BaseModel):
    """A further model; each field has the meaning of the frontend's setting of the same name, which is for the first model."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())

    served_model_names: Names = Field(min_length=1, description="Names that clients may use for the model.")
    tokenizer_targets: Targets = Field(min_length=1, description="Addresses of its tokenizers.")
    engine_targets: Targets = Field(min_length=1, description="Addresses of its engine cores.")
    engine_admin_targets: Targets = Field((), description="Addresses of the engine cores' admin ports, in the same order.")
    model: str = Field("", description="What the names stand for, in /v1/models. Empty: as the tokenizer reports it.")
    lora_modules: LoraModules = Field((), description="LoRA adapters, as NAME=PATH.")
    default_mm_loras: MediaLoras = Field("", description="JSON object of LoRA adapters by modality. Empty: none.")
    lora_resolver_dir: str = Field("", description="Directory whose LoRA adapters are loaded on first use. Empty: none.")
    tool_call_parser: ToolParser = Field("auto", description="Format of tool calls.")
    reasoning_parser: ReasoningParser = Field("auto", description="Format of the reasoning.")
    use_generation_config: bool = Field(True, description="Use the sampling defaults of the model's authors.")
    override_generation_config: SamplingDefaults = Field(
        "", description="JSON object of sampling defaults that replace those. Empty: none."
    )
    default_chat_template_kwargs: TemplateVariables = Field(
        "", description="JSON object of variables of the chat template for requests that do not set them. Empty: none."
    )


def _from_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tuple(json.loads(value)) if value.strip() else ()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"must be a JSON list of objects: {error}") from None


FurtherModels = Annotated[tuple[FurtherModel, ...], NoDecode, BeforeValidator(_from_json)]
"""The type of the setting `further_models`: a list in YAML, JSON text in flags and environment variables."""


def check_names_differ(models: Iterable[Sequence[str]]) -> None:
    """Raise ValueError if two models have a name in common; `models` are the names of each."""
    seen: set[str] = set()
    for names in models:
        if twice := seen.intersection(names):
            raise ValueError(f"two models have the name {min(twice)!r}; each needs names of its own")
        seen.update(names)


def names_of(served_model_names: Sequence[str], lora_modules: Sequence[str], default_mm_loras: str) -> list[str]:
    """Return the names of a model and of its adapters."""
    modules = modules_of(lora_modules, default_mm_loras)
    return [*served_model_names, *(module.partition("=")[0] for module in modules)]
