import socket

import pytest

from berthmaster.lib.runtime import ports
from berthmaster.lib.runtime.ports import PortClaims, free_ports, port_is_free


def test_a_port_is_claimed_by_one_of_us_at_a_time() -> None:
    [port] = free_ports(1)
    first, second = PortClaims(), PortClaims()
    assert first.take(port)
    assert not second.take(port)
    assert port_is_free(port)  # nobody listens there
    first.close()
    assert second.take(port)
    del second
    assert first.take(port)  # nobody has the other one any more
    first.close()


def test_a_port_that_somebody_listens_on_is_nobodys_to_claim() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, PortClaims() as claims:
        port = listening.getsockname()[1]
        assert not claims.take(port)
        with PortClaims() as others:
            assert not others.take(port)
        listening.close()
        assert claims.take(port)


def test_who_chooses_passes_over_what_others_have_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = range(14_000, 14_040)  # below those that are chosen elsewhere
    monkeypatch.setattr(ports, "_candidates", lambda: few)
    with PortClaims() as claims:
        mine = claims.choose(10)
        assert len(set(mine)) == 10
        theirs = free_ports(5)
        assert not set(theirs) & set(mine)
        assert not set(claims.choose(10)) & set(mine)  # nor what it has itself
        with pytest.raises(OSError, match="of 30 ports are free"):
            free_ports(30)
