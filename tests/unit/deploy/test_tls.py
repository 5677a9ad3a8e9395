"""Certificates: what is wrong with the files, and that commands trust them."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from anychip.deploy.tls import problems_of, trust
from anychip.recipe.schema import TlsSection
from anychip.server.tls import Renewal, Tls
from support.networks import make_certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files by name: two certificates with their keys, an old one, one whose key is encrypted, and what is no PEM."""
    folder = tmp_path_factory.mktemp("pem")
    files = {}
    for name, days in (("one", 9), ("two", 9), ("old", -1)):
        files[name, "crt"], files[name, "key"] = make_certificate(folder, name, days)
    with open(files["one", "key"], "rb") as file:
        key = serialization.load_pem_private_key(file.read(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "locked.key").write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    (folder / "text").write_text("hello")
    files["locked"], files["text"], files["gone"] = (str(folder / name) for name in ("locked.key", "text", "gone"))
    files["folder"] = str(folder)
    return files


def test_a_certificate_with_its_key_is_well(made):
    assert problems_of(TlsSection(certificate=made["one", "crt"], key=made["one", "key"])) == ()
    assert problems_of(None) == ()
    assert trust(None) is None


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("gone", "gone", ["server.tls.certificate: the file", "server.tls.key: the file", "No such file"]),
        ("folder", ("one", "key"), ["server.tls.certificate", "Is a directory"]),
        ("text", ("one", "key"), ["server.tls.certificate", "holds no certificate"]),
        (("one", "crt"), "text", ["server.tls.key", "holds no private key"]),
        (("one", "crt"), ("two", "key"), ["server.tls.key", "is not that of the certificate"]),
        (("one", "crt"), "locked", ["server.tls.key", "is encrypted"]),
        (("old", "crt"), ("old", "key"), ["server.tls.certificate", "ended on"]),
    ],
)
def test_what_is_wrong_with_the_files_is_told_by_key_and_file(made, certificate, key, told):
    problems = "\n".join(problems_of(TlsSection(certificate=made[certificate], key=made[key])))
    assert all(words in problems for words in told)


def shown(server, client):
    """The certificate that a handshake in memory shows."""
    ends = [ssl.MemoryBIO() for _ in range(4)]
    asking = client.wrap_bio(ends[0], ends[1])
    answering = server.wrap_bio(ends[2], ends[3], server_side=True)
    done = set()
    while len(done) < 2:
        for one in (asking, answering):
            try:
                one.do_handshake()
                done.add(one)
            except ssl.SSLWantReadError:
                pass
            ends[2].write(ends[1].read())
            ends[0].write(ends[3].read())
    return asking.getpeercert(binary_form=True)


def context_of(certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.parametrize("name", ["one", "old"])
def test_commands_trust_a_service_s_own_certificate_whatever_its_name_and_date(made, name):
    tls = TlsSection(certificate=made[name, "crt"], key=made[name, "key"])
    assert shown(context_of(tls.certificate, tls.key), trust(tls))


def test_commands_trust_no_other_certificate(made):
    tls = TlsSection(certificate=made["one", "crt"], key=made["one", "key"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(context_of(made["two", "crt"], made["two", "key"]), trust(tls))
    gone = TlsSection(certificate=made["gone"], key=made["gone"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(context_of(made["one", "crt"], made["one", "key"]), trust(gone))


def test_a_renewed_certificate_is_shown_and_a_broken_one_is_not(made, tmp_path):
    files = Tls(tmp_path / "crt", tmp_path / "key")

    def put(name):
        for path, kind in zip(files, ("crt", "key"), strict=True):
            path.write_bytes(Path(made[name, kind]).read_bytes())

    put("one")
    context = context_of(*files)
    renewal = Renewal(files, context)
    everybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    everybody.check_hostname, everybody.verify_mode = False, ssl.CERT_NONE
    first = shown(context, everybody)
    assert not renewal.read()
    put("two")
    assert renewal.read()
    second = shown(context, everybody)
    assert second != first
    files.key.write_bytes(Path(made["one", "key"]).read_bytes())  # half of a renewal
    with pytest.raises(ssl.SSLError):
        renewal.read()
    assert shown(context, everybody) == second
