"""Peers: other servers and engines on the same machine, in separate virtual environments; `make peers` installs them.

No measured program imports these files. The *_driver.py files and vllm_cli.py run in a peer's environment.
"""
