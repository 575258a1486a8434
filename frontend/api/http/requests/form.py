"""Forms: reads a body of multipart/form-data, within limits, into its model. A form has texts and files instead of JSON."""

from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, InstanceOf, ValidationError, WithJsonSchema
from starlette.requests import Request

from tetrad.frontend.api.http.requests.body import read_bytes
from tetrad.frontend.api.http.requests.multipart import Part, boundary_of, split_form
from tetrad.frontend.api.http.requests.named import models_of
from tetrad.frontend.api.http.schemas.errors import from_validation
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)

_LIST = "[]"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form.

    Attributes:
        data: the content.
        filename: its name at the client; may be empty.
        media_type: as "audio/mpeg"; empty: not given.
    """

    data: bytes = field(repr=False)
    filename: str = ""
    media_type: str = ""


UploadField = Annotated[InstanceOf[Upload], WithJsonSchema({"type": "string", "format": "binary"})]
"""The type of a field with a file."""


async def read_prompt_form(request: Request, model: type[Model]) -> Model:
    """Return the form of a generation request as `model`.

    Raises:
        InvalidRequest: the form is invalid; its status is 400, 413 or 415.
        Overloaded: the server is full (429); the body is not read.
    """
    models_of(request).admission.check()
    boundary = boundary_of(request.headers.get("content-type", ""))
    settings: FrontendSettings = request.app.state.settings
    with request.app.state.bodies.open() as share:
        fields = _fields(split_form(await read_bytes(request, settings.max_body_bytes, share), boundary))
    try:
        # A form has numbers as text.
        return model.model_validate(fields, strict=False)
    except ValidationError as error:
        raise from_validation(error) from None


def _fields(parts: list[Part]) -> dict[str, Any]:
    """Return the values by name. A name may end with "[]": its values are a list, as those of OpenAI's clients."""
    fields: dict[str, Any] = {}
    for part in parts:
        name = part.name.removesuffix(_LIST)
        value = _text(part) if part.filename is None else Upload(part.data, part.filename, part.media_type)
        if name != part.name:
            fields.setdefault(name, [])
            if isinstance(fields[name], list):
                fields[name].append(value)
                continue
        if name in fields:
            raise InvalidRequest(f"{name[:64]} is given twice; give it once.", field=name[:64])
        fields[name] = value
    return fields


def _text(part: Part) -> str:
    try:
        return part.data.decode()
    except UnicodeDecodeError as error:
        text = f"{part.name[:64]} is not UTF-8: byte {error.start} is {part.data[error.start]:#04x}."
        raise InvalidRequest(text, field=part.name[:64]) from None
