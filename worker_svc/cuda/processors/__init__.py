"""Logits processors of the CUDA device, one file each; what a request asks of them is the same as on the host (sampler/)."""
