"""Peers: other servers and engines on the same machine, in virtual environments of their own; `make peers` installs them.

Nothing here is imported by what is measured. The *_driver.py files and vllm_cli.py run in a peer's environment.
"""
