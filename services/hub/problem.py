"""Hub problem: describes a download error in one line, with a remedy.

Covers the errors of the hub's client, of its HTTP library and of the operating system.
"""

import errno

from tetrad.services.hub.name import HubName

_TOKEN = "https://huggingface.co/settings/tokens"


def describe_problem(error: Exception, name: HubName, revision: str | None, endpoint: str, cache_setting: str) -> str:
    """Return a description of the error and a remedy, without a full stop at its end.

    Args:
        error: the error.
        name, revision: what was to be downloaded.
        endpoint: URL of the hub.
        cache_setting: name of the setting that chooses the directory of the downloaded files.
    """
    from huggingface_hub import errors

    repository = name.repository
    if isinstance(error, errors.GatedRepoError):
        steps = f"accept its licence there, then set HF_TOKEN to a token of that account ({_TOKEN})"
        return f"{endpoint}/{repository} is gated: {steps}"
    if isinstance(error, errors.DisabledRepoError):
        return f"the hub has disabled {repository}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"no file or directory here has this name, and {endpoint} has no repository {repository}, or it is private: check "
            "the name, or set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, errors.HFValidationError):
        return f"no file or directory here has this name, and no repository of the hub can have it ({_first_line(error)})"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no revision {revision!r}: give one of its branches, tags or commits"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            "HF_HUB_OFFLINE is set and the cache does not have all of it: unset HF_HUB_OFFLINE, or download it on a machine "
            "with a network and copy the cache"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _describe_status(error.response.status_code, endpoint)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: make room, or set {cache_setting} to a directory on a larger disk"
    if isinstance(error, OSError) and error.filename is not None:
        reason = f"{error.strerror or type(error).__name__}: {error.filename}"
        return f"the cache cannot be written ({reason}): set {cache_setting} to a directory that can"
    return (
        f"the download from {endpoint} broke off or never began ({_first_line(error)}): check the network, HF_ENDPOINT and "
        "proxies, then run the command again; it resumes where it stopped"
    )


def _describe_status(status: int, endpoint: str) -> str:
    if status == 401:
        return f"{endpoint} does not accept the token: set HF_TOKEN to a valid one ({_TOKEN}), or unset it"
    if status == 403:
        return f"{endpoint} forbids it: the token lacks the permission to read this repository ({_TOKEN})"
    if status == 429:
        return f"{endpoint} limits the rate of requests: wait some minutes, or set HF_TOKEN for a higher limit"
    return f"{endpoint} answered with HTTP status {status}: try again later"


def _first_line(error: Exception) -> str:
    text = next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)
    return text.rstrip(".")[:200]
