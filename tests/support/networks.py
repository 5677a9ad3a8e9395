"""A service's network settings from plain values, as tests write them."""

from pathlib import Path

from anychip.deploy.network import network_of
from anychip.recipe.schema import ServerSection
from anychip.server.keys import ApiKey, KeyRing
from anychip.server.network import Network

NAMES = ("api_key", "network")


def network_from(settings):
    """The network that these settings ask for, which are taken out of them: an api_key, or a network as in a recipe."""
    key, server = settings.pop("api_key", None), settings.pop("network", None)
    if server is not None:
        return network_of(ServerSection.model_validate(server))
    return Network(keys=None if key is None else KeyRing([ApiKey("test", key)]))


def make_certificate(folder, name="localhost", days=1):
    """A self-signed certificate and its key, as the paths of two PEM files."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, kind, none = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths = Path(folder) / f"{name}.crt", Path(folder) / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, kind, none))
    return tuple(map(str, paths))
