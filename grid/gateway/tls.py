"""TLS from certificate files, which may be renewed under a running gateway."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import NoReturn

from gridweave.errors import OptionError


class Certificate:
    """A certificate and its key, in files.

    Parameters
    ----------
    cert, key : str
    client_ca : str, optional
        A file of certificates; whoever connects may show one that is signed by one of them.

    Raises
    ------
    OptionError
        If one cannot be used.
    """

    def __init__(self, cert: str, key: str, client_ca: str | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self.context = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._seen = self._state()

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for option, path in (("cert", self._cert), ("key", self._key)):
            try:
                text = Path(path).read_bytes()
            except OSError as error:
                raise OptionError(option, f"{path}: {error.strerror}; name a file that can be read") from None
            if b"-----BEGIN" not in text:
                raise OptionError(option, f"{path} is no PEM file; it begins with -----BEGIN")

        def ask() -> NoReturn:
            raise OptionError("key", f"{self._key} is encrypted; decrypt it, and let nobody else read it")

        try:
            context.load_cert_chain(self._cert, self._key, password=ask)
        except ssl.SSLError as error:
            if "KEY_VALUES_MISMATCH" in str(error):
                raise OptionError("key", f"{self._key} is not the key of {self._cert}") from None
            problem = f"{self._cert} or {self._key} cannot be used: {error.reason or error}; PEM files of a certificate"
            raise OptionError("cert", f"{problem} and its key are asked for") from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                problem = f"{self._client_ca}: {getattr(error, 'reason', None) or error.strerror}"
                raise OptionError("client_ca", f"{problem}; name a file with certificates (PEM)") from None
            # Users have tokens, and show none.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _state(self) -> tuple[object, ...]:
        """Return by what a change of the files is seen."""
        found: list[object] = []
        for path in (self._cert, self._key):
            try:
                seen = os.stat(path)
                found.append((seen.st_mtime_ns, seen.st_ino, seen.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def has_changed(self) -> bool:
        """Return whether the files are others than those that were read last."""
        return self._state() != self._seen

    def reload(self) -> None:
        """Read the files again, for connections that come from now on.

        Raises
        ------
        OptionError
            If they cannot be used; the old ones go on then.
        """
        self._seen = self._state()  # what is wrong with them is told once
        self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._loaded(self.context)
