from berthmaster.runtime.ports import claim, free_ports


def test_a_port_is_claimed_by_one_of_us_at_a_time() -> None:
    [port] = free_ports(1)
    first = claim(port)
    assert first is not None
    assert claim(port) is None
    first.close()
    again = claim(port)
    assert again is not None
    again.close()
