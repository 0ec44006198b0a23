"""Certificates for the kits of parties that talk in one process, made as FLARE names them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from factorized_fl.silo.agreement import Kit
from factorized_fl.silo.transport import network

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificate(name: str, key: Key, issuer: str, signer: Key, days: tuple[int, int] = (-1, 1)) -> x509.Certificate:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name_of(name)).issuer_name(name_of(issuer))
    made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
    made = made.not_valid_before(now + timedelta(days=days[0])).not_valid_after(now + timedelta(days=days[1]))
    return made.sign(signer, hashes.SHA256())


def certify(
    kits: Mapping[str, Kit], parties: Sequence[str], days: tuple[int, int] = (-1, 1), rsa_keys: bool = False
) -> None:
    """Writes a key, a certificate and the root of one new authority to the kits of these parties."""
    authority = ec.generate_private_key(ec.SECP256R1())
    root = certificate("authority", authority, "authority", authority)
    for party in parties:
        key: Key = ec.generate_private_key(ec.SECP256R1())
        if rsa_keys:  # FLARE makes such keys
            key = rsa.generate_private_key(65537, 2048)
        files = network().credentials(kits[party])
        files.key.parent.mkdir(parents=True, exist_ok=True)
        pem = serialization.Encoding.PEM
        plain = serialization.NoEncryption()
        files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        files.key.chmod(0o600)
        files.certificate.write_bytes(certificate(party, key, "authority", authority, days).public_bytes(pem))
        files.root.write_bytes(root.public_bytes(pem))
