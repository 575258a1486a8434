"""Certificates for tests, made with openssl as docs/security.md makes them."""

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """An identity in files.

    Attributes:
        serial: of the certificate, as ssl prints it.
        ca: the authority that signed it.
    """

    cert: Path
    key: Path
    ca: Path
    serial: str

    @property
    def settings(self) -> dict[str, Path]:
        """Return what a service is told to have this identity, and to trust its authority."""
        return {"tls_cert_file": self.cert, "tls_key_file": self.key, "tls_ca_file": self.ca}

    def environment(self, prefix: str) -> dict[str, str]:
        """Return the same as variables: prefix is TETRAD_WORKER and so on."""
        return {f"{prefix}_{name.upper()}": str(path) for name, path in self.settings.items()}

    def copy_to(self, directory: Path) -> "Certificate":
        """Return the same identity under the same names in another directory; what stands there is replaced, file by file."""
        copy = Certificate(directory / "tls.crt", directory / "tls.key", directory / "ca.crt", self.serial)
        for source, target in ((self.cert, copy.cert), (self.key, copy.key), (self.ca, copy.ca)):
            new = target.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            new.replace(target)
        return copy


class Authority:
    """Signs certificates.

    Args:
        directory: where everything is written.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.cert, self._key = directory / f"{name}.crt", directory / f"{name}.key"
        _openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.cert, "-days", "2", "-subj", f"/CN={name}")

    def certificate(self, name: str, *, days: int = 60) -> Certificate:
        """Return a new certificate for this machine; negative days: it has expired."""
        stem = self.directory / f"{name}-{uuid.uuid4().hex[:8]}"
        cert, key, request, names = (stem.with_suffix(suffix) for suffix in (".crt", ".key", ".csr", ".names"))
        names.write_text(_NAMES)
        serial = f"{uuid.uuid4().int >> 8:X}"
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signing = ("-CA", self.cert, "-CAkey", self._key, "-set_serial", f"0x{serial}", "-extfile", names)
        _openssl("x509", "-req", "-in", request, *signing, "-out", cert, "-days", days)
        key.chmod(0o600)
        return Certificate(cert, key, self.cert, f"{serial:0>{len(serial) + len(serial) % 2}}")


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
