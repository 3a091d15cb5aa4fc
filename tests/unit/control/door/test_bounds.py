"""How much of the door one cluster may have."""

from berthmaster.control.door.core.bounds import Bucket, InHand, Turns


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(rate_per_s=10, burst=100)
    assert bucket.take(60, 0.0)
    assert bucket.take(40, 0.0)
    assert not bucket.take(1, 0.0)
    assert not bucket.take(11, 1.0)
    assert bucket.take(10, 1.0)
    assert not bucket.take(101, 5.0)  # more than the burst waits for a full bucket
    assert bucket.take(500, 12.0)
    assert not bucket.take(1, 12.0)
    assert not bucket.take(1, 3.0)  # a clock that goes back gives nothing


def test_what_was_taken_on_credit_is_paid_back_first() -> None:
    bucket = Bucket(rate_per_s=10, burst=100)
    assert bucket.take(0, 0.0)
    bucket.owe(150)
    assert not bucket.take(0, 4.0)
    assert bucket.take(0, 5.0)


def test_what_is_in_hand_is_bounded_for_each_cluster() -> None:
    hand = InHand(max_requests=2, max_items=10)
    assert hand.begin("red")
    assert hand.begin("red")
    assert not hand.begin("red")
    assert hand.begin("blue")
    hand.end("red")
    assert hand.begin("red")
    assert hand.add("red", 8)
    assert not hand.add("red", 3)
    assert hand.add("red", 2)
    hand.end_items("red", 8)
    assert hand.add("red", 8)


def test_one_piece_of_each_goes_before_the_next_of_any() -> None:
    turns: Turns[str] = Turns(room=2)
    for number in range(4):
        turns.join("flood", 1, f"flood-{number}")
    turns.join("calm", 1, "calm-0")
    assert list(turns.due()) == [(1, "flood-0"), (1, "calm-0")]
    assert list(turns.due()) == []
    turns.leave(1)
    turns.join("late", 1, "late-0")
    assert list(turns.due()) == [(1, "flood-1")]
    turns.leave(2)
    assert list(turns.due()) == [(1, "late-0"), (1, "flood-2")]


def test_what_is_larger_than_all_room_goes_when_there_is_some() -> None:
    turns: Turns[str] = Turns(room=10)
    turns.join("red", 200, "large")
    turns.join("blue", 1, "small")
    assert list(turns.due()) == [(200, "large")]
    turns.leave(200)
    assert list(turns.due()) == [(1, "small")]
