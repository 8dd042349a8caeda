"""TLS on every port: real handshakes, renewed certificates, clients that must show their own."""

import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.core.errors import InvalidInput
from partita.embedded import Server
from partita.settings import ServerSettings, Settings
from partita.system.addresses import Address
from partita.system.certificates import Certificate, CertificateFiles
from tests import models

trustme = pytest.importorskip("trustme")
triton = pytest.importorskip("tritonclient.grpc")
grpc = pytest.importorskip("grpc")

pytestmark = pytest.mark.e2e

LOCAL = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def authority() -> Any:
    return trustme.CA()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.linear(tmp_path_factory.mktemp("models") / "linear.onnx")


def write(folder: Path, issued: Any) -> CertificateFiles:
    files = CertificateFiles(certificate=folder / "server.pem", key=folder / "server.key")
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    files.key.write_bytes(issued.private_key_pem.bytes())
    return files


def serving(model: Path, files: CertificateFiles, **more: Any) -> Server:
    settings = ServerSettings(
        http=LOCAL,
        metrics=LOCAL,
        management=LOCAL,
        grpc=LOCAL,
        tls_certificate=str(files.certificate),
        tls_key=str(files.key),
        **more,
    )
    return Server([model], cores=1, tune="never", settings=Settings(server=settings), ports=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Any, model: Path) -> Iterator[Server]:
    files = write(tmp_path_factory.mktemp("tls"), authority.issue_cert("127.0.0.1"))
    with serving(model, files, max_header_bytes=1000) as running:
        yield running


def context(authority: Any, client: Any = None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    authority.configure_trust(made)
    if client is not None:
        client.configure_cert(made)
    return made


def get(server: Server, tls: ssl.SSLContext, path: str = "/v2/health/ready", port: str = "http") -> str:
    with urllib.request.urlopen(server.url(port) + path, timeout=20, context=tls) as answer:
        return str(answer.read().decode())


def serial(server: Server, port: str, authority: Any, client: Any = None) -> int:
    """Number of the certificate that a new connection is shown."""
    address = server.head.ports[port]
    tls = context(authority, client)
    if port == "grpc":
        tls.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((address.host, address.port), 20) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        found: Any = secure.getpeercert()
    return int(found["serialNumber"], 16)


def ask_over_grpc(server: Server, authority: Any, client: Any = None) -> float:
    x = np.ones((1, 4), np.float32)
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(x)
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        None if client is None else client.private_key_pem.bytes(),
        None if client is None else client.cert_chain_pems[0].bytes(),
    )
    made = triton.InferenceServerClient(str(server.head.ports["grpc"]), creds=credentials)
    try:
        return float(made.infer("linear", [tensor]).as_numpy("y")[0, 0])
    finally:
        made.close()


def test_every_port_speaks_tls(server: Server, authority: Any) -> None:
    tls = context(authority)
    assert json.loads(get(server, tls)) == {"ready": True}
    assert "partita_http_connections" in get(server, tls, "/metrics", "metrics")
    x = np.ones((1, 4), np.float32)
    assert ask_over_grpc(server, authority) == pytest.approx(float(server.predict("linear", x)["y"][0, 0]))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        get(server, ssl.create_default_context())


def test_inference_in_pieces_and_a_refusal_arrive_whole(server: Server, authority: Any) -> None:
    address = server.head.ports["http"]
    body = json.dumps(
        {"inputs": [{"name": "x", "shape": [500, 4], "datatype": "FP32", "data": [1.0] * 2000}]}
    ).encode()
    head = f"POST /v2/models/linear/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with (
        socket.create_connection((address.host, address.port), 20) as plain,
        context(authority).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(head + body[:100])
        secure.sendall(body[100:])
        answer = secure.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        while not answer.endswith(b"}"):
            answer += secure.recv(1 << 16)
        secure.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 2000)
        refusal = b""
        while part := secure.recv(1 << 16):
            refusal += part
    assert refusal.startswith(b"HTTP/1.1 431 ")
    assert b"max_header_bytes = 1000" in refusal


def test_who_does_not_speak_tls_gets_nothing_and_disturbs_nobody(server: Server, authority: Any) -> None:
    address = server.head.ports["http"]
    with socket.create_connection((address.host, address.port), 20) as plain:
        plain.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP")
    assert json.loads(get(server, context(authority))) == {"ready": True}


def test_a_renewed_certificate_is_shown_to_new_connections(
    tmp_path: Path, authority: Any, model: Path
) -> None:
    files = write(tmp_path, authority.issue_cert("127.0.0.1"))
    with serving(model, files) as server:
        before = {port: serial(server, port, authority) for port in ("http", "grpc")}
        assert len(set(before.values())) == 1
        certificate = server.head._ports._certificate
        assert certificate is not None
        assert not certificate.renew()
        files.key.write_bytes(b"half of a renewal")
        assert not certificate.renew()
        assert serial(server, "http", authority) == before["http"]
        write(tmp_path, authority.issue_cert("127.0.0.1"))
        assert certificate.renew()
        after = {port: serial(server, port, authority) for port in ("http", "grpc")}
        assert len(set(after.values())) == 1
        assert after["http"] != before["http"]
        ask_over_grpc(server, authority)


def test_clients_show_certificates_where_they_must(tmp_path: Path, authority: Any, model: Path) -> None:
    files = write(tmp_path, authority.issue_cert("127.0.0.1"))
    ours, theirs = trustme.CA(), trustme.CA()
    (tmp_path / "clients.pem").write_bytes(ours.cert_pem.bytes())
    good, bad = ours.issue_cert("client.example"), theirs.issue_cert("client.example")
    with serving(model, files, tls_client_ca=str(tmp_path / "clients.pem")) as server:
        assert json.loads(get(server, context(authority, good))) == {"ready": True}
        ask_over_grpc(server, authority, good)
        for client in (None, bad):
            with pytest.raises(OSError, match=r"."):
                get(server, context(authority, client))
            with pytest.raises(Exception, match="UNAVAILABLE"):
                ask_over_grpc(server, authority, client)


def test_files_that_are_no_certificate_are_said(tmp_path: Path, authority: Any) -> None:
    files = write(tmp_path, authority.issue_cert("127.0.0.1"))
    assert Certificate(files).pem[0] == files.key.read_bytes()
    files.key.write_bytes(authority.issue_cert("127.0.0.1").private_key_pem.bytes())
    with pytest.raises(InvalidInput, match="are no PEM certificate with its key"):
        Certificate(files)
    files.key.unlink()
    with pytest.raises(InvalidInput, match="tls_key: there is no file"):
        Certificate(files)
