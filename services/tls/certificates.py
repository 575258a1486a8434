"""Certificates: reports the expiry of this process's certificates: in its log if it is near, and in its metrics (metrics.py).

Each Identity reports the certificates that it reads. This file parses only the expiry, in 25 lines; TLS checks validity. The
package `cryptography` would add 18 MB to every service's image and 24 ms to its start, and nothing else needs it.
"""

import re
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tetrad.services.log import get_logger

log = get_logger()

_SOON_S = 30 * 86_400
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17  # tags of DER

_lock = threading.Lock()  # guards _ends: gRPC reads identities on its own threads
_ends: dict[Path, float] = {}


def certificate_ends() -> dict[Path, float]:
    """Return the expiry of each file's last noted certificate, in Unix time in seconds."""
    with _lock:
        return dict(_ends)


def note_certificate(path: Path, chain: bytes) -> None:
    """Note the certificate that is presented from now on; log a warning, once for each, if it expires within 30 days.

    Args:
        path: path of the certificate's file.
        chain: content of the file, in PEM.
    """
    ends = chain_ends(chain.decode(errors="replace"))
    with _lock:
        if ends is None or _ends.get(path) == ends:
            return
        _ends[path] = ends
    left_s = ends - time.time()
    if left_s < _SOON_S:
        shown = datetime.fromtimestamp(ends, UTC).isoformat()
        log.warning("tls.certificate_ends_soon", file=str(path), ends_at=shown, days_left=int(left_s // 86_400))


def chain_ends(chain: str) -> float | None:
    """Return the earliest expiry of a chain's certificates, in Unix time in seconds; None if it has no certificate."""
    return min((_ends_at(ssl.PEM_cert_to_DER_cert(found)) for found in _PEM.findall(chain)), default=None)


def _ends_at(der: bytes) -> float:
    """Return the end of the validity of a certificate (RFC 5280, 4.1)."""
    (_, certificate) = next(_elements(der))
    (_, signed) = next(_elements(certificate))
    # [version,] serial number, signature, issuer, validity, ...
    _, _, _, validity, *_ = (content for tag, content in _elements(signed) if tag != _VERSION)
    _, (tag, end) = _elements(validity)
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"  # years have two digits until 2049
    return datetime.strptime(end.decode(), form).replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element in a DER value (X.690, 8.1)."""
    while der:
        tag, length, start = der[0], der[1], 2
        if length >= 0x80:  # the long form: the number of bytes of the length
            start += length - 0x80
            length = int.from_bytes(der[2:start])
        yield tag, der[start : start + length]
        der = der[start + length :]
