"""The names, addresses and requests that a sandbox may use."""

from pathlib import Path

import pytest

from kingdom.errors import Misconfigured
from kingdom.realm import read_realm
from kingdom.soldiers.sandbox.egress_rules import (
    EgressRefused,
    canonical_name,
    check_host,
    is_allowed,
    is_public,
    parse_allowed_name,
    parse_connect_request,
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("index.example.org", "index.example.org"),
        ("Index.Example.Org.", "index.example.org"),
        ("*.Example.org", "*.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("*.bücher.example", "*.xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_name_has_one_spelling(written: str, meant: str) -> None:
    assert parse_allowed_name(written) == meant


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        *((name, "would allow every host: name the hosts") for name in ("*", "*.", "", " ")),
        *((name, "would allow every host of a top-level domain") for name in ("*.com", "*.com.", "*.中国")),
        *((name, "is an address") for name in ("10.0.0.1", "93.184.216.34.", "127.1", "0x7f.1", "::1", "[2606::1]")),
        *((name, "is more than a host name") for name in ("https://a.org", "a.org:443", "a.org/simple")),
        *((name, "is not a full host name") for name in ("localhost", "a b.org", "a..org", "-a.org", "a_b.org")),
        *((name, "is not a full host name") for name in ("*.*.org", "*a.org", "a.*", "a.*.org", f"{'a' * 64}.org")),
    ],
)
def test_a_setting_that_is_not_a_host_name_is_refused(tmp_path: Path, written: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_allowed_name(written)
    (tmp_path / "kingdom.yaml").write_text(f"soldiers: {{egress: [index.example.org, '{written}']}}\n")
    with pytest.raises(Misconfigured, match=rf"kingdom\.yaml:1: soldiers: egress: .*{reason}"):
        read_realm(tmp_path / "kingdom.yaml")


@pytest.mark.parametrize("profile", ["dev", "off"])
def test_allowed_names_are_refused_if_the_sandbox_reaches_every_host(tmp_path: Path, profile: str) -> None:
    (tmp_path / "kingdom.yaml").write_text(f"soldiers: {{sandbox: '{profile}', egress: [index.example.org]}}\n")
    with pytest.raises(Misconfigured, match=f"{profile} reaches every host: leave out egress, or set sandbox to str"):
        read_realm(tmp_path / "kingdom.yaml")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("index.example.org", True),
        ("files.index.example.org", False),
        ("notindex.example.org", False),
        ("index.example.org.evil.example", False),
        ("a.example.net", True),
        ("a.b.example.net", True),
        ("example.net", False),
        ("badexample.net", False),
    ],
)
def test_a_name_allows_itself_and_a_wildcard_all_names_below_it(host: str, *, allowed: bool) -> None:
    assert is_allowed(host, ("index.example.org", "*.example.net")) is allowed


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "2130706433", "0x7f000001", "127.1", "a.0x7f", "1.2.3.4.", "[::1]", "localhost", "", "."),
        *("a..b", "a.b..", "*.b.c", "a.b\0.c", "ä.org", "a" * 64 + ".org", ".".join(["abcdefg"] * 40)),
    ],
)
def test_addresses_and_incomplete_names_are_not_host_names(text: str) -> None:
    assert canonical_name(text) is None


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::101:101"]
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
        *("192.88.99.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "fe80::1", "fe80::1%1", "fec0::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "3fff::1"),
        # IPv6 addresses that embed an IPv4 address: mapped, compatible, NAT64, 6to4, Teredo.
        *("::ffff:127.0.0.1", "::ffff:93.184.216.34", "::127.0.0.1", "::93.184.216.34"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::101:101", "2002:7f00:1::1", "2001:0:4136:e378::1"),
    ],
)
def test_addresses_of_inner_networks_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_a_request_names_host_and_port() -> None:
    assert parse_connect_request(b"CONNECT index.example.org:443 HTTP/1.1\r\nHost: other\r\n\r\n") == (
        "index.example.org",
        443,
    )


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"GET http://index.example.org/ HTTP/1.1", "plain http is refused"),
        (b"POST / HTTP/1.1", "plain http is refused"),
        (b"connect index.example.org:443 HTTP/1.1", "plain http is refused"),
        (b"CONNECT index.example.org HTTP/1.1", "not a CONNECT request for a host and a port"),
        (b"CONNECT index.example.org: HTTP/1.1", "not a CONNECT request"),
        (b"CONNECT index.example.org:443", "not a CONNECT request"),
        (b"CONNECT  index.example.org:443 HTTP/1.1", "not a CONNECT request"),
        (b"CONNECT index.example.org:443 HTTP/2", "not a CONNECT request"),
        (b"CONNECT p\xc3\xbf.org:443 HTTP/1.1", "not a CONNECT request"),
        (b"CONNECT index.example.org:443 HTTP/1.1\nX: y", "not a CONNECT request"),
    ],
)
def test_other_requests_are_refused(head: bytes, reason: str) -> None:
    with pytest.raises(EgressRefused, match=reason):
        parse_connect_request(head + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("93.184.216.34", 443, "not by an address"),
        ("[::1]", 443, "not by an address"),
        ("user@index.example.org", 443, "not by an address"),
        ("index.example.org", 80, "port 80 is not allowed, only 443 is"),
        ("index.example.org", 22, "port 22 is not allowed"),
        ("evil.example", 443, r"evil\.example is not in soldiers\.egress"),
    ],
)
def test_an_unlisted_host_is_refused(host: str, port: int, reason: str) -> None:
    with pytest.raises(EgressRefused, match=reason):
        check_host(host, port, ("index.example.org",))
    assert check_host("Index.example.org.", 443, ("index.example.org",)) == "index.example.org"
