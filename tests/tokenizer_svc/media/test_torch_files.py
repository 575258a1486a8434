"""Files of torch.save: tensors are read as torch reads them, and nothing else in such a file is run or read."""

import io
import pickle
import random
import zipfile

import numpy as np
import pytest
import torch

from tetrad.tokenizer_svc.media.items import MediaError
from tetrad.tokenizer_svc.media.torch_file import read_torch_file

VALUES = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 7


def saved(value: object, **options: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def changed(data: bytes, **members: bytes) -> bytes:
    """Return a file with other contents of some of its members; `pkl` and `storage` are the description and the elements."""
    names = {"archive/data.pkl": "pkl", "archive/data/0": "storage", "archive/byteorder": "order"}
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, members.get(names.get(name, ""), old.read(name)))
    return out.getvalue()


@pytest.mark.parametrize(
    "tensor",
    [
        VALUES,
        VALUES.double(),
        VALUES.half(),
        VALUES.bfloat16(),
        VALUES[1:4:2].T,
        VALUES.reshape(1, 2, 3, 4),
        torch.tensor([[1, 12, 8]]),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.zeros(0, 4),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_have_their_values_and_shapes(tensor, protocol):
    found = read_torch_file(saved(tensor, pickle_protocol=protocol))

    assert torch.equal(torch.from_numpy(found.copy()).to(tensor.dtype), tensor)


Sizes = tuple[int, ...]


def described(*, storage: str = "torch FloatStorage", shape: Sizes = (4, 6), strides: Sizes = (6, 1)) -> bytes:
    """Return the description of a tensor with any values, as torch.save writes it."""

    def numbers(values: Sizes) -> bytes:
        pieces = (pickle.encode_long(value) for value in values)
        return b"(" + b"".join(b"\x8a" + bytes([len(piece)]) + piece for piece in pieces) + b"t"

    def name(text: str) -> bytes:
        return b"c" + text.replace(" ", "\n").encode() + b"\n"

    place = b"(X\7\0\0\0storage" + name(storage) + b"X\1\0\0\x000X\3\0\0\0cpuK\x18tQ"
    rest = b"K\0" + numbers(shape) + numbers(strides) + b"\x89" + name("collections OrderedDict") + b")RtR."
    return b"\x80\2" + name("torch._utils _rebuild_tensor_v2") + b"(" + place + rest


class Command:
    def __reduce__(self):
        return eval, ("open('made', 'w')",)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (saved({"a": VALUES}), "no file of torch.save with one tensor alone"),
        (saved([VALUES, VALUES]), "no file of torch.save with one tensor alone"),
        (saved(VALUES, _use_new_zipfile_serialization=False), "no file of torch.save with one tensor alone"),
        (saved(VALUES)[:-30], "no file of torch.save with one tensor alone"),
        (b"", "no file of torch.save with one tensor alone"),
        (saved(torch.nn.Parameter(VALUES)), "refers to 'torch._utils _rebuild_parameter'"),
        (saved(VALUES.to(torch.float8_e4m3fn)), "refers to 'torch"),
        (saved(VALUES.to_sparse()), "refers to 'torch._utils _rebuild_sparse_tensor'"),
        (changed(saved(VALUES), pkl=pickle.dumps(Command(), 2)), "refers to '__builtin__ eval'"),
        (changed(saved(VALUES), pkl=b"\x80\x02" + b"(" * 5_000), "of 5002 bytes"),
        (changed(saved(VALUES), pkl=b"\x80\x02."), "no file of torch.save with one tensor alone"),
        (changed(saved(VALUES), pkl=described(storage="collections OrderedDict")), "no file of torch.save with one"),
        (changed(saved(VALUES), pkl=described(shape=(1, 1), strides=(1 << 70, 1))), "no file of torch.save with one"),
        (changed(saved(VALUES), pkl=described(shape=(0, 1 << 40, 1 << 40), strides=(0, 0, 0))), "no file of torch.save with"),
        (changed(saved(VALUES), pkl=described(shape=(1 << 2000, 6))), "no file of torch.save with one tensor alone$"),
        (changed(saved(VALUES), pkl=described(shape=(1 << 40, 6))), r"of shape \[1099511627776, 6\] does not fit its storage"),
        (changed(saved(VALUES), storage=b"\0" * 92), r"of shape \[4, 6\] does not fit its storage of 23 elements"),
        (changed(saved(VALUES), order=b"big"), "another byte order"),
    ],
)
def test_other_files_are_refused(data, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(MediaError, match=text):
        read_torch_file(data)

    assert not list(tmp_path.iterdir())


def test_a_small_file_does_not_become_a_large_array():
    expanded = saved(torch.ones(1).expand(1 << 20, 1 << 10))

    with pytest.raises(MediaError, match="does not fit its storage of 1 elements"):
        read_torch_file(expanded)


def test_the_description_that_the_tests_change_is_read():
    assert torch.equal(torch.from_numpy(read_torch_file(changed(saved(VALUES), pkl=described())).copy()), VALUES)


def test_a_compressed_archive_is_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (1 << 16))

    with pytest.raises(MediaError, match=r"'archive/data\.pkl' compressed"):
        read_torch_file(out.getvalue())


def test_a_tensor_of_bfloat16_is_exact():
    assert np.array_equal(read_torch_file(saved(VALUES.bfloat16())), VALUES.bfloat16().float().numpy())


def test_damaged_files_are_read_or_refused():
    whole, dice = saved(VALUES.half()), random.Random(4)

    for _ in range(400):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            found = read_torch_file(bytes(data[: dice.choice((len(data), dice.randrange(len(data))))]))
        except MediaError:
            continue
        assert found.size <= VALUES.numel()
