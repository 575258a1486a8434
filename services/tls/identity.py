"""Identity: the certificate, key and trusted authorities of a process, read from files and read again when they change.

Servers read it at every handshake and channels at every call, so certificates can be replaced without a restart. While the
files do not match each other, the identity stays unchanged, so several files may be replaced one after the other.
"""

import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tetrad.services.errors import InvalidRequest
from tetrad.services.log import get_logger
from tetrad.services.tls.certificates import note_certificate

log = get_logger()

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of an identity.

    Args:
        cert_file: certificate chain, PEM; None: none is presented.
        key_file: its private key, PEM, without a password.
        ca_file: certificates of the trusted authorities, PEM; None: those of the system, and callers need no certificate.
    """

    cert_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """The content of the files at the last read. `revision` grows by one with each change."""

    revision: int
    cert: bytes | None
    key: bytes | None
    ca: bytes | None
    context: ssl.SSLContext  # the same content, for HTTPS servers


class Identity:
    """The present identity in files.

    Args:
        files: the files of the identity.

    Raises:
        InvalidRequest: the files cannot be used; the message has the reason.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._paths = [path for path in (files.cert_file, files.key_file, files.ca_file) if path is not None]
        # Guards the fields below: gRPC reads the identity on its own threads.
        self._lock = threading.Lock()
        self._refused = ""  # reason of the last refusal, so that it is logged once
        self._noted = 0  # revision whose expiry was noted
        try:
            self._seen = self._stamp()
            self._material = self._read(revision=1)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"{self._names()} cannot be used for TLS: {_reason(error)}.", field="tls_cert_file") from error

    def current(self) -> Material:
        """Return the identity; read the files again if they have changed. Otherwise it costs a few `stat`. Any thread."""
        with self._lock:
            self._take_changes()
            self._note_end()
            return self._material

    def _take_changes(self) -> None:
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            self._seen = stamp
            material = self._read(revision=self._material.revision + 1)
            if self._stamp() != stamp:  # the files changed meanwhile: the content may be a mix of two identities
                self._seen = ()
                return
        except (OSError, ssl.SSLError) as error:
            if not isinstance(error, ssl.SSLError):  # try again: a change of a file's owner or mode does not change its stamp
                self._seen = ()
            self._refuse(_reason(error))
        else:
            self._material = material
            self._refused = ""
            log.info("tls.files_read_again", files=self._names(), revision=material.revision)

    def _note_end(self) -> None:
        """Note the expiry of the certificate that will be presented."""
        if self._noted == self._material.revision:
            return
        self._noted = self._material.revision
        if self._files.cert_file is not None and self._material.cert is not None:
            note_certificate(self._files.cert_file, self._material.cert)

    def server_context(self) -> ssl.SSLContext:
        """Return a context for HTTPS, TLS 1.2 and up, that uses the present identity at every handshake."""

        self.current()  # so that its expiry is known before the first handshake
        entry = _CurrentContext(ssl.PROTOCOL_TLS_SERVER)
        entry.identity = self
        return entry

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a gRPC port; with `ca_file`, callers need a certificate from its authorities."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._configuration, require_client_authentication=self._files.ca_file is not None
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        material = self.current()
        return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], root_certificates=material.ca)

    def _stamp(self) -> _Stamp:
        return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in map(os.stat, self._paths))

    def _read(self, *, revision: int) -> Material:
        # This is first, since it refuses files that gRPC would accept and fail with later, such as a key that does not match.
        context = _server_context(self._files)
        cert, key, ca = (
            None if path is None else path.read_bytes()
            for path in (self._files.cert_file, self._files.key_file, self._files.ca_file)
        )
        return Material(revision, cert, key, ca, context)

    def _refuse(self, reason: str) -> None:
        if reason != self._refused:
            self._refused = reason
            log.error("tls.files_not_taken", files=self._names(), reason=reason)

    def _names(self) -> str:
        return ", ".join(str(path) for path in self._paths)


class _CurrentContext(ssl.SSLContext):
    """A context whose connections each have the context of the present identity.

    One context that changed its certificates would keep its sessions: callers of a removed authority could resume theirs.
    """

    identity: Identity

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Return a new connection."""
        return self.identity.current().context.wrap_bio(*args, **kwargs)


def channel_credentials(material: Material) -> grpc.ChannelCredentials:
    """Return the credentials of a channel; without authorities in the material, it trusts those of the system."""
    return grpc.ssl_channel_credentials(material.ca, material.key, material.cert)


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.cert_file is not None:
        # Without this, OpenSSL would ask for a password on the terminal.
        context.load_cert_chain(files.cert_file, files.key_file, password="")
    if files.ca_file is not None:
        context.load_verify_locations(files.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: OSError | ssl.SSLError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
