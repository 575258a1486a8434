"""Settings of the frontend's public ports: addresses, API keys, TLS, and the web pages that may call (CORS)."""

import os
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tetrad.services.settings import Keys, Names, OptionalPath, ServiceSettings
from tetrad.services.tls.identity import TlsFiles
from tetrad.services.unix_listener import MAX_PATH_BYTES

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")


class PublicSettings(ServiceSettings):
    """Options of the public ports; see FrontendSettings."""

    host: str = Field("127.0.0.1", description="Address of the HTTP server.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the HTTP server. 0: any free port.")
    uds: OptionalPath = Field(
        None,
        description="Path of a Unix socket for the HTTP server, in place of host and port, without TLS. The umask and the "
        "directory decide who may connect. Unset: host and port.",
    )
    grpc_port: int | None = Field(
        None, ge=0, le=65535, description="Port of the public gRPC API, on the address of the HTTP server. Unset: no gRPC API."
    )
    listen: str = Field(
        "", description="Address of the public gRPC API, if it differs from host and grpc-port: host:port or unix:/path."
    )
    http_fd: int | None = Field(
        None,
        description="File descriptor of a bound HTTP socket, inherited from a parent process that keeps it open, so that "
        "connections wait while the frontend restarts. Unset: the frontend binds host and port itself.",
    )
    private_listen: str = Field(
        "",
        description="Second address of the gRPC API, for the supervisor of this frontend: unix:/path. Two frontends with such "
        "an address may share the public port while one replaces the other. Empty: none.",
    )

    api_key: Keys = Field(
        (),
        repr=False,
        description="API keys, separated by commas or given repeatedly. Every request must present one of them. Empty: no key "
        "is needed.",
    )
    api_key_file: OptionalPath = Field(None, description="File with further API keys, one per line; reloaded when it changes.")
    operator_api_key: Keys = Field(
        (),
        repr=False,
        description="API keys that also grant access to the operator endpoints, such as pause, sleep and reset_prefix_cache.",
    )
    operator_endpoints: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Access to the operator endpoints. auto: callers with an operator key; if there are no operator keys, "
        "everyone, provided that the server listens on this machine only and needs no API key, else no one. on: "
        "everyone who may send requests. off: no one.",
    )
    ssl_certfile: OptionalPath = Field(
        None,
        description="Certificate chain of the public HTTP and gRPC ports (PEM file); reloaded when it changes. Unset: "
        "tls-cert-file, or no TLS.",
    )
    ssl_keyfile: OptionalPath = Field(None, description="Private key of ssl-certfile (PEM file, no password).")
    ssl_ca_certs: OptionalPath = Field(
        None,
        description="Certificate authorities (PEM file). Callers of the public ports must present a certificate issued by one "
        "of them. Unset: callers need no certificate.",
    )
    allowed_origins: Names = Field(
        (),
        description="Origins of web pages that may call this server (CORS), separated by commas. *: any origin. Empty: none.",
    )
    allowed_methods: Names = Field(
        ("*",), description="HTTP methods that pages of allowed-origins may use, separated by commas. *: any method."
    )
    allowed_headers: Names = Field(
        ("*",), description="HTTP headers that pages of allowed-origins may send, separated by commas. *: any header."
    )
    allow_credentials: bool = Field(
        False, description="Allow pages of allowed-origins to send cookies. allowed-origins must then not contain *."
    )

    @field_validator("uds")
    @classmethod
    def _as_absolute_path(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        path = value.absolute()
        if (length := len(os.fsencode(path))) > MAX_PATH_BYTES:
            raise ValueError(f"the path of a Unix socket has at most {MAX_PATH_BYTES} bytes, this one has {length}")
        return path

    @model_validator(mode="after")
    def _check_public_tls(self) -> Self:
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl-certfile and ssl-keyfile go together")
        if self.ssl_ca_certs is not None and self.public_tls is None:
            raise ValueError("ssl-ca-certs needs ssl-certfile: a server that verifies clients must have a certificate")
        return self

    @model_validator(mode="after")
    def _check_uds(self) -> Self:
        if self.uds is not None and (self.ssl_certfile is not None or self.ssl_ca_certs is not None):
            raise ValueError("uds is a Unix socket, which has no TLS: leave out ssl-certfile and ssl-ca-certs")
        return self

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.grpc_port and self.grpc_port == self.port and self.uds is None and not self.listen:
            raise ValueError(f"port and grpc-port are both {self.port}: choose two ports")
        return self

    @field_validator("allowed_methods")
    @classmethod
    def _in_capitals(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.upper() for name in value)

    @field_validator("allowed_origins")
    @classmethod
    def _as_browsers_send_them(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        origins = tuple(origin.lower() for origin in value)
        for origin in origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"an origin is scheme://host or scheme://host:port, without a path, got {origin[:80]!r}")
        return origins

    @model_validator(mode="after")
    def _check_origins(self) -> Self:
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ValueError("allow-credentials needs allowed-origins that are named: any page could act for its visitors")
        return self

    @property
    def public_tls(self) -> TlsFiles | None:
        """The TLS files of the public ports; None: the ports have no TLS."""
        if self.ssl_certfile is not None:
            return TlsFiles(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)
        return None if self.tls_cert_file is None else TlsFiles(self.tls_cert_file, self.tls_key_file, self.ssl_ca_certs)

    @property
    def grpc_address(self) -> str | None:
        """The address that the public gRPC API listens on; None: the API is off."""
        if self.listen:
            return self.listen
        host = f"[{self.host}]" if ":" in self.host else self.host or "0.0.0.0"
        return None if self.grpc_port is None else f"{host}:{self.grpc_port}"
