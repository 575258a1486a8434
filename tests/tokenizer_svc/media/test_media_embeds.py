"""The tokenizer's gRPC API takes embeddings of images in place of files, and refuses those of other shapes."""

import io
from typing import Any

import numpy as np
import pytest
import torch

from tests.tokenizer_svc.errors import error_of
from tests.tokenizer_svc.media.conftest import StubOf
from tetrad.services.errors import InvalidRequest
from tetrad.services.models.media_embeds import join_embeds
from tetrad.v1 import tokenizer_pb2

HIDDEN = 64
ROWS = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(1))


def saved(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def encode(text: str, data: bytes = b"", uuid: str = "", **tensors: torch.Tensor) -> tokenizer_pb2.EncodeRequest:
    file = data or (join_embeds({name: saved(each) for name, each in tensors.items()}) if tensors else b"")
    item = tokenizer_pb2.MediaItem(modality="image", data=file, uuid=uuid, is_embeds=True)
    return tokenizer_pb2.EncodeRequest(texts=[text], media=[item], return_token_strings=True)


@pytest.mark.parametrize(
    ("kind", "text", "marks"),
    [("llava", "<image>", ["<image>"] * 4), ("internvl", "<IMG_CONTEXT>", ["<img>", *["<IMG_CONTEXT>"] * 4, "</img>"])],
)
async def test_a_placeholder_becomes_as_many_tokens_as_there_are_embeddings(
    stub_of: StubOf, kind: str, text: str, marks: list[str]
) -> None:
    stub = await stub_of(kind)
    [encoding] = (await stub.Encode(encode(f"a{text}b", image_embeds=ROWS.half()[None]))).encodings

    assert list(encoding.token_strings) == ["a", *marks, "b"]
    [feature] = encoding.mm_features
    assert feature.num_embeds == len(ROWS)
    [(name, tensor)] = feature.tensors.items()
    assert (name, list(tensor.shape)) == ("image_embeds", [4, HIDDEN])
    assert np.array_equal(np.frombuffer(tensor.inline, "<f4").reshape(4, HIDDEN), ROWS.half().float().numpy())


async def test_a_grid_gives_positions_on_three_axes(stub_of: StubOf) -> None:
    stub = await stub_of("qwen2_5_vl")
    request = encode("<|image_pad|>", image_embeds=ROWS, image_grid_thw=torch.tensor([[1, 4, 4]]))
    [encoding] = (await stub.Encode(request)).encodings

    [feature] = encoding.mm_features
    assert list(feature.grid) == [1, 2, 2]
    assert list(encoding.token_strings) == ["<|image_pad|>"] * 4


async def test_the_identifier_names_the_content(stub_of: StubOf) -> None:
    stub = await stub_of("llava")

    async def identifier(**tensors: torch.Tensor) -> str:
        [encoding] = (await stub.Encode(encode("<image>", **tensors))).encodings
        return str(encoding.mm_features[0].identifier)

    first = await identifier(image_embeds=ROWS)

    assert await identifier(image_embeds=ROWS.clone()) == first
    assert await identifier(image_embeds=ROWS + 1) != first


async def test_a_uuid_stands_for_embeddings_that_were_sent(stub_of: StubOf) -> None:
    stub = await stub_of("llava")
    missed = await error_of(stub.Encode(encode("<image>", uuid="rows")))
    first = await stub.Encode(encode("<image>", uuid="rows", image_embeds=ROWS))

    assert missed.message == "Cache miss for image at index 0 but data is not provided."
    assert await stub.Encode(encode("<image>", uuid="rows")) == first


FIELDS = "The data should contain the fields: image_embeds, image_grid_thw, but has the following keys: "
GRID = torch.tensor([[1, 4, 4]])


@pytest.mark.parametrize(
    ("kind", "tensors", "text"),
    [
        ("qwen2_5_vl", {"image_embeds": ROWS}, f"{FIELDS}image_embeds"),
        ("qwen2_5_vl", {"image_embeds": ROWS, "image_grid_thw": GRID * 2}, "4 embeddings; the image_grid_thw [2, 8, 8] is"),
        ("qwen2_5_vl", {"image_embeds": ROWS, "image_grid_thw": GRID * 0}, "image_grid_thw must be three integers"),
        ("qwen2_5_vl", {"image_embeds": ROWS, "image_grid_thw": GRID[0, :2]}, "image_grid_thw must be three integers"),
        (
            "llava",
            {"image_embeds": ROWS, "sizes": GRID},
            "fields: image_embeds, but has the following keys: image_embeds, sizes",
        ),
        (
            "llava",
            {"image_embeds": ROWS[:, 1:]},
            "hidden dimension mismatch: got 63, but model expects 64. Embedding shape: (4, 63)",
        ),
        ("llava", {"image_embeds": ROWS[0]}, "must be 2D (seq_len, hidden_size) or 3D (batch, seq_len, hidden_size), got 1D"),
        (
            "llava",
            {"image_embeds": torch.stack([ROWS, ROWS])},
            "of shape (2, 4, 64) must be one item of at least one embedding",
        ),
        ("llava", {"image_embeds": ROWS[:0]}, "must be one item of at least one embedding"),
        ("llava", {"image_embeds": ROWS.int()}, "must be of a floating-point type, got int32"),
        ("llava", {"image_embeds": ROWS.double() * 1e300}, "has values that are not finite in float32"),
        ("llava", {"image_embeds": ROWS.repeat(1000, 1)}, "it becomes 4000 embeddings; the limit is 4"),
        ("smolvlm", {"image_embeds": ROWS}, "This model takes no image embeddings: send the image."),
    ],
)
async def test_what_does_not_fit_the_model_is_refused(stub_of: StubOf, kind: str, tensors: dict[str, Any], text: str) -> None:
    stub = await stub_of(kind)
    refused = await error_of(stub.Encode(encode("x", **tensors)))

    assert isinstance(refused, InvalidRequest)
    assert text in refused.message
    assert refused.field == "media[0]"


@pytest.mark.parametrize(
    "data",
    [b"a file", b"\0embeds\n", b"\0embeds\n\xff", join_embeds({"image_embeds": b"no tensor"})],
    ids=["no sign", "empty", "cut", "no tensor"],
)
async def test_other_files_are_refused(stub_of: StubOf, data: bytes) -> None:
    stub = await stub_of("llava")
    refused = await error_of(stub.Encode(encode("<image>", data)))

    assert isinstance(refused, InvalidRequest)
    assert "Failed to load image 0: " in refused.message
