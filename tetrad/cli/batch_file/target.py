"""Target: the file of a batch's results; results for an http or https URL are uploaded by PUT when the run has ended."""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tetrad.cli.http_client import httpx, trust_of
from tetrad.services.errors import InvalidRequest, Unavailable

_TIMEOUT_S = 1000.0
"""Seconds of one upload, which may be large."""
_ATTEMPTS = 5


class ResultTarget:
    """Where results go. A context manager: results that were not uploaded at its end are kept, and their place is printed.

    Args:
        given: path or URL.
        ca_file: certificate authorities to trust for an https URL beside the system's. None: only these.
        retry_s: seconds between two attempts to upload.

    Attributes:
        path: the file to which the results are appended.

    Raises:
        InvalidRequest: it is not a valid URL, or the file of authorities cannot be used.
    """

    def __init__(self, given: str, ca_file: Path | None = None, *, retry_s: float = 5.0) -> None:
        self._name, self._retry_s = given, retry_s
        self._directory: Path | None = None
        self.path = Path(given)
        if not given.startswith(("http://", "https://")):
            return
        try:
            self._url = httpx.URL(given)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"{given!r} is not a URL: {error}", field="output_file") from error
        self._trust = trust_of(ca_file, and_system=True)
        self._directory = Path(tempfile.mkdtemp(prefix="tetrad-results-"))
        self.path = self._directory / "results.jsonl"

    def __str__(self) -> str:
        return self._name

    @property
    def again(self) -> str:
        """What to do to go on with a run that was stopped."""
        return "run the same command again" if self._directory is None else f"run the command again with -o {self.path}"

    @property
    def repetition(self) -> str:
        """What to do to send the requests with temporary failures of a finished run again."""
        if self._directory is None:
            return "run the same command again to send these requests again"
        return "with a file as -o, the same command would send these requests again when it is repeated"

    def deliver(self) -> None:
        """Upload the results of a finished run, if they are for a URL; Unavailable if the server does not take them."""
        if self._directory is None:
            return
        problem = self._upload()
        for _ in range(_ATTEMPTS - 1):
            if problem is None:
                break
            time.sleep(self._retry_s)
            problem = self._upload()
        if problem is not None:
            raise Unavailable(f"Cannot upload the results to {self._name}: {problem}.")
        shutil.rmtree(self._directory)

    def _upload(self) -> str | None:
        """Try to upload the results; return the problem, if any."""
        try:
            with (
                httpx.Client(timeout=_TIMEOUT_S, trust_env=False, verify=self._trust) as client,
                self.path.open("rb") as file,  # httpx sends its length, which stores of objects require
            ):
                response = client.put(self._url, content=file)
        except (httpx.HTTPError, httpx.UnsupportedProtocol) as error:
            return str(error) or type(error).__name__
        return None if response.is_success else f"the server answers {response.status_code}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._directory is None or not self._directory.exists():
            return
        if self.path.exists() and self.path.stat().st_size:
            print(f"The results were not uploaded; they are in {self.path}.", file=sys.stderr)
        else:
            shutil.rmtree(self._directory)
