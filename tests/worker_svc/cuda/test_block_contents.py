"""The content of blocks on a device, read and written beside the steps."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.cuda.block_contents import DeviceBlockContents
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.kv_cache.block_contents import HostBlockContents


@pytest.fixture
def layers():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (8, 12), generator=generator, dtype=torch.uint8) for _ in range(3)]


def test_content_is_that_of_blocks_in_host_memory(layers):
    device, host = DeviceBlockContents(layers, HostAccelerator()), HostBlockContents(layers)
    assert device.block_bytes == host.block_bytes == 36
    assert device.read(np.array([5, 0, 3])) == host.read(np.array([5, 0, 3]))


def test_written_blocks_are_read_again_and_others_stay(layers):
    device = DeviceBlockContents(layers, HostAccelerator())
    others = device.read(np.array([0, 2, 3, 4, 6, 7]))
    content = bytes(range(72))
    device.write(np.array([5, 1]), content)
    assert device.read(np.array([5, 1])) == content
    assert device.read(np.array([0, 2, 3, 4, 6, 7])) == others


def test_content_of_another_size_is_refused(layers):
    with pytest.raises(ValueError, match="cannot reshape"):
        DeviceBlockContents(layers, HostAccelerator()).write(np.array([5, 1]), bytes(71))
