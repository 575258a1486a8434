"""Source: provides the batch file of a command as a local file; one at an http or https URL is downloaded before the run."""

import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tetrad.cli.http_client import httpx, trust_of
from tetrad.services.errors import InvalidRequest, NotFound, Unavailable

_TIMEOUT_S = 60.0


@contextlib.contextmanager
def local_source(given: str, ca_file: Path | None = None) -> Iterator[Path]:
    """Yield the path of a batch file; a downloaded one is removed at the end.

    Args:
        given: path or URL of the file.
        ca_file: certificate authorities to trust for an https URL beside the system's. None: only these.

    Raises:
        InvalidRequest: it is not a valid URL, or the file of authorities cannot be used.
        NotFound: the server refuses the file.
        Unavailable: the file cannot be downloaded.
    """
    if not given.startswith(("http://", "https://")):
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="tetrad-batch-") as directory:
        path = Path(directory) / "batch.jsonl"
        _download(given, path, trust_of(ca_file, and_system=True))
        yield path


def _download(url: str, path: Path, trust: ssl.SSLContext) -> None:
    try:
        with (
            httpx.Client(timeout=_TIMEOUT_S, follow_redirects=True, trust_env=False, verify=trust) as client,
            client.stream("GET", url) as response,
            path.open("wb") as file,
        ):
            if not response.is_success:
                raise NotFound(f"Cannot read the batch file {url}: the server answers {response.status_code}.")
            for part in response.iter_bytes():
                file.write(part)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidRequest(f"{url!r} is not the URL of a batch file: {error}", field="input_file") from error
    except httpx.HTTPError as error:
        raise Unavailable(f"Cannot read the batch file {url}: {error or type(error).__name__}.") from error
    except OSError as error:
        raise Unavailable(f"Cannot write {path}: {error.strerror or error}.") from error
