"""Addresses: a server connects to public addresses, and to networks that its operator names."""

import pytest

from tetrad.frontend.media.addresses import may_connect, parse_networks


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34"])
def test_public_addresses_are_allowed(address):
    assert may_connect(address, ())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:a00:0:100:808:808",
        "::127.0.0.1",
        "fec0::1",
        "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
        "no address",
        "",
    ],
)
def test_other_addresses_are_refused(address):
    assert not may_connect(address, ())


def test_networks_of_the_operator_are_allowed():
    networks = parse_networks(("10.1.0.0/16", "fd00::/8"))

    assert may_connect("10.1.2.3", networks)
    assert may_connect("::ffff:10.1.2.3", networks)
    assert may_connect("fd00::1", networks)
    assert not may_connect("10.2.0.1", networks)
