"""The sites' common secret: one site makes it, and every other site receives it encrypted for a key that the site made.

A site makes an exchange key (X25519) and signs it with the key of its certificate: its offer. A site that has the
secret checks certificate and signature of each offer, encrypts the secret for that exchange key, and signs the result.
The coordinator relays offers and wrapped secrets and cannot read the secret. The party that made the kits may have kept
a copy of the certificates' keys, which does not decrypt relayed secrets. With these keys, that party and the
coordinator together could impersonate a site while the secret is handed over.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from factorized_fl.core.errors import UserError
from factorized_fl.core.files import write_atomically
from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.messages import BadMessage
from factorized_fl.silo.transport import Credentials

SECRET, EXCHANGE_KEY = "secret", "exchange-key"  # files of a site's kit
LENGTH = 32  # bytes of the secret
Offer = dict[str, str]  # name, certificate (PEM), exchange key and signature (base64)
_NONCE = bytes(12)  # every wrapping key is used once
_PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)


class SecretKeeper:
    """The secret of one site, in its kit, and the exchange by which it gets or gives it."""

    def __init__(self, kit: Kit, credentials: Credentials) -> None:
        self.kit, self._files = kit, credentials

    @property
    def secret(self) -> bytes | None:
        """The secret, None if this site does not have it yet; raises UserError if its file is damaged."""
        path = self.kit.path / SECRET
        if not path.exists():
            return None
        found = path.read_bytes()
        if len(found) != LENGTH:
            raise UserError(f"'{path}' is damaged: remove it, and another site hands the secret over again.")
        return found

    def make(self) -> None:
        """Makes the secret, if this site does not have it."""
        if self.secret is None:
            self._write(SECRET, secrets.token_bytes(LENGTH))

    def offer(self) -> Offer:
        """The site's certificate and its signed exchange key."""
        public = _encoded(self._exchange_key().public_key().public_bytes_raw())
        certificate = self._files.certificate.read_text(encoding="ascii")
        signed = self._sign(_offer_text(self.kit, self.kit.party, public))
        return {"name": self.kit.party, "certificate": certificate, "public": public, "signature": signed}

    def wrap(self, offers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The secret, encrypted for each site whose offer is valid; raises BadMessage for one that is not."""
        found = {}
        for name, offer in offers.items():
            public = X25519PublicKey.from_public_bytes(self._checked(name, offer))
            ephemeral = X25519PrivateKey.generate()
            mine = _encoded(ephemeral.public_key().public_bytes_raw())
            about = f"secret|{self.kit.agreement.id}|{self.kit.party}|{name}|{offer['public']}|{mine}".encode()
            assert self.secret is not None
            content = ChaCha20Poly1305(_key(ephemeral.exchange(public), about)).encrypt(_NONCE, self.secret, about)
            wrapped: dict[str, Any] = {"from": self.offer(), "key": mine, "content": _encoded(content)}
            found[name] = wrapped | {"signature": self._sign(about + content)}
        (self.kit.path / EXCHANGE_KEY).unlink(missing_ok=True)
        return found

    def take(self, wrapped: Mapping[str, Any]) -> None:
        """Stores the secret that another site wrapped; raises BadMessage if it is not from a site, and for this one."""
        if self.secret is not None:
            return
        try:
            sender, mine, content = str(wrapped["from"]["name"]), str(wrapped["key"]), _decoded(wrapped["content"])
            key = self._exchange_key()
            public = _encoded(key.public_key().public_bytes_raw())
            about = f"secret|{self.kit.agreement.id}|{sender}|{self.kit.party}|{public}|{mine}".encode()
            self._checked(sender, wrapped["from"])
            certificate = x509.load_pem_x509_certificate(wrapped["from"]["certificate"].encode())
            _verify(certificate, _decoded(wrapped["signature"]), about + content)
            shared = key.exchange(X25519PublicKey.from_public_bytes(_decoded(mine)))
            found = ChaCha20Poly1305(_key(shared, about)).decrypt(_NONCE, content, about)
        except (KeyError, TypeError, ValueError, AttributeError, InvalidTag) as error:
            raise BadMessage(f"the wrapped secret cannot be opened ({type(error).__name__})") from None
        if len(found) != LENGTH:
            raise BadMessage("the wrapped secret has the wrong length")
        self._write(SECRET, found)
        (self.kit.path / EXCHANGE_KEY).unlink(missing_ok=True)

    def _checked(self, name: str, offer: Mapping[str, Any]) -> bytes:
        """The exchange key in an offer; raises BadMessage unless a site of this federation with that name signed it."""
        try:
            certificate = x509.load_pem_x509_certificate(str(offer["certificate"]).encode())
            public, signature = str(offer["public"]), _decoded(offer["signature"])
            root = x509.load_pem_x509_certificate(self._files.root.read_bytes())
            certificate.verify_directly_issued_by(root)
            (common,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        except (KeyError, TypeError, ValueError, InvalidSignature) as error:
            raise BadMessage(f"the offer of {name[:40]!r} has no valid certificate ({type(error).__name__})") from None
        now = datetime.now(UTC)
        if name not in self.kit.agreement.sites or common.value != name or offer.get("name") != name:
            raise BadMessage(f"the offer of {name[:40]!r} has the certificate of another party")
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise BadMessage(f"the certificate of {name} is expired or not yet valid")
        _verify(certificate, signature, _offer_text(self.kit, name, public))
        found = _decoded(public)
        if len(found) != LENGTH:
            raise BadMessage(f"the exchange key of {name} has the wrong length")
        return found

    def _exchange_key(self) -> X25519PrivateKey:
        """The site's exchange key, made when it is first needed and kept until the secret is here."""
        path = self.kit.path / EXCHANGE_KEY
        if not path.exists():
            self._write(EXCHANGE_KEY, X25519PrivateKey.generate().private_bytes_raw())
        return X25519PrivateKey.from_private_bytes(path.read_bytes())

    def _sign(self, content: bytes) -> str:
        key = serialization.load_pem_private_key(self._files.key.read_bytes(), None)
        if isinstance(key, rsa.RSAPrivateKey):
            return _encoded(key.sign(content, _PADDING, hashes.SHA256()))
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return _encoded(key.sign(content, ec.ECDSA(hashes.SHA256())))

    def _write(self, name: str, content: bytes) -> None:
        path: Path = self.kit.path / name
        write_atomically(path, content)
        path.chmod(0o600)


def _offer_text(kit: Kit, name: str, public: str) -> bytes:
    return f"offer|{kit.agreement.id}|{name}|{public}".encode()


def _key(shared: bytes, about: bytes) -> bytes:
    return HKDF(hashes.SHA256(), LENGTH, None, about).derive(shared)


def _verify(certificate: x509.Certificate, signature: bytes, content: bytes) -> None:
    key = certificate.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, content, _PADDING, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        else:
            raise BadMessage("a certificate has a key of an unknown kind")
    except InvalidSignature:
        raise BadMessage("an offer or a wrapped secret has a wrong signature") from None


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decoded(text: Any) -> bytes:
    return base64.b64decode(str(text), validate=True)


def read_table_of(payload: bytes) -> dict[str, Any]:
    """The JSON object in a payload; raises BadMessage if it is none."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        raise BadMessage("its payload is not JSON") from None
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise BadMessage("its payload is not a table of offers")
    return found
