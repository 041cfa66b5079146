"""Streams by absolute numbers, without nodes and time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connex.core.credit import ReceiveCredit
from connex.core.errors import LocalProtocolError, RemoteProtocolError
from connex.core.stream import Arrival, Held, Piece, ReceiveStream, SendStream


def piece_to(receiver: ReceiveStream, piece: Piece, limit: int = 1 << 40) -> Arrival:
    return receiver.receive(piece.message, piece.offset, piece.end, piece.payload, piece.fin, limit)


def open_sender(*messages: bytes, limit: int = 1 << 40) -> SendStream:
    sender = SendStream(limit=limit)
    for message in messages:
        sender.write(message)
    return sender


def pieces(sender: SendStream, most: int) -> list[Piece]:
    result = []
    while (piece := sender.next_piece(most)) is not None:
        result.append(piece)
    return result


def taken(receiver: ReceiveStream) -> list[bytes]:
    result = []
    while (held := receiver.take()) is not None:
        result.append(bytes(held.payload))
    return result


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 60), st.randoms(use_true_random=False))
def test_pieces_repeated_and_shuffled_give_a_prefix_and_a_rewind_gives_the_rest(messages, most, draw) -> None:  # type: ignore[no-untyped-def]
    sender, receiver = open_sender(*messages), ReceiveStream(1000)
    sender.finish()
    sent = pieces(sender, most)
    chaos = sent * 2
    draw.shuffle(chaos)
    got: list[bytes] = []
    for piece in chaos:
        piece_to(receiver, piece)
        got += taken(receiver)
        assert got == messages[: len(got)]
    sender.rewind()
    for piece in pieces(sender, most):
        piece_to(receiver, piece)
    assert got + taken(receiver) == messages
    assert receiver.finished


def test_credit_cuts_a_message_and_more_credit_continues_it() -> None:
    sender = open_sender(b"abcdefgh", limit=3)
    assert [piece.payload for piece in pieces(sender, 100)] == [b"abc"]
    assert not sender.pending
    sender.acknowledge(0, 0, 3, 8, False)
    assert [piece.payload for piece in pieces(sender, 100)] == [b"defgh"]


def test_an_empty_message_needs_no_credit() -> None:
    sender = open_sender(b"", limit=0)
    assert [(piece.message, piece.offset, piece.end) for piece in pieces(sender, 10)] == [(0, 0, 0)]


def test_acknowledged_messages_are_let_go_and_the_rest_is_sent_again() -> None:
    sender = open_sender(b"aa", b"bb", b"cc")
    pieces(sender, 10)
    assert sender.acknowledge(1, 2, 4, 1 << 40, False)
    assert sender.buffered == 4
    sender.rewind()
    assert [bytes(piece.payload) for piece in pieces(sender, 10)] == [b"bb", b"cc"]
    assert all(piece.repeated for piece in [sender.next_piece(10)] if piece)


def test_going_back_to_what_was_received_skips_what_the_receiver_has() -> None:
    sender = open_sender(b"abcdef", b"gh")
    pieces(sender, 2)
    sender.seek(4)
    assert [bytes(piece.payload) for piece in pieces(sender, 10)] == [b"ef", b"gh"]


@pytest.mark.parametrize("claim", [(9, 2, 2), (0, 99, 99), (0, 0, 99), (1, 2, 1)])
def test_an_acknowledgement_of_what_was_never_written_is_a_violation(claim: tuple[int, int, int]) -> None:
    sender = open_sender(b"ab")
    with pytest.raises(RemoteProtocolError, match="only 1 messages and 2 bytes"):
        sender.acknowledge(*claim, 0, False)


def test_writing_after_the_end_is_refused() -> None:
    sender = open_sender(b"ab")
    sender.finish()
    with pytest.raises(LocalProtocolError, match="closed"):
        sender.write(b"c")


def test_the_end_is_in_flight_until_it_is_acknowledged() -> None:
    sender = open_sender()
    sender.finish()
    assert [piece.fin for piece in pieces(sender, 10)] == [True]
    assert sender.awaiting
    sender.acknowledge(0, 0, 0, 0, True)
    assert sender.finished


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ((0, 0, 2, b"abc"), "ends at 2"),
        ((0, 0, 5000, b"abc"), "limit is 1000"),
    ],
)
def test_frames_that_contradict_themselves_are_violations(frame: tuple[int, int, int, bytes], words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        ReceiveStream(1000).receive(*frame, False, 1 << 40)


def test_a_message_that_changes_its_end_is_a_violation() -> None:
    receiver = ReceiveStream(1000)
    receiver.receive(0, 0, 10, b"abc", False, 100)
    with pytest.raises(RemoteProtocolError, match="expected 10"):
        receiver.receive(0, 3, 11, b"d", False, 100)


def test_bytes_beyond_the_credit_are_not_taken() -> None:
    receiver = ReceiveStream(1000)
    assert receiver.receive(0, 0, 10, b"abcdef", False, 5) is Arrival.GAP
    assert receiver.received == 0


def test_a_payload_received_in_its_place_is_not_copied_and_is_right() -> None:
    receiver = ReceiveStream(1000)
    place = receiver.place(0, 0, 10, 6, 100)
    assert place is not None
    place[:] = b"abcdef"
    assert receiver.receive(0, 0, 10, place, False, 100) is Arrival.PARTIAL
    last = receiver.place(0, 6, 10, 4, 100)
    assert last is not None
    last[:] = b"ghij"
    assert receiver.receive(0, 6, 10, last, False, 100) is Arrival.COMPLETE
    assert taken(receiver) == [b"abcdefghij"]


def test_no_place_for_what_is_not_next() -> None:
    receiver = ReceiveStream(1000)
    assert receiver.place(1, 0, 10, 6, 100) is None
    assert receiver.place(0, 3, 10, 6, 100) is None
    assert receiver.place(0, 0, 10, 6, 5) is None


def test_a_buffer_of_the_application_takes_the_message() -> None:
    receiver = ReceiveStream(1000)
    mine = bytearray(100)
    receiver.allocate = lambda size: mine
    receiver.receive(0, 0, 6, b"abc", False, 100)
    receiver.receive(0, 3, 6, b"def", False, 100)
    held = receiver.take()
    assert held is not None
    assert bytes(held.payload) == b"abcdef"
    assert mine[:6] == b"abcdef"


def test_a_read_only_buffer_of_the_application_is_its_error() -> None:
    receiver = ReceiveStream(1000)
    receiver.allocate = lambda size: memoryview(bytes(size))
    with pytest.raises(LocalProtocolError, match="read-only"):
        receiver.receive(0, 0, 6, b"abc", False, 100)


def test_both_sides_go_on_elsewhere_from_their_numbers() -> None:
    sender, receiver = open_sender(b"one", b"two!", b"three"), ReceiveStream(1000)
    for piece in pieces(sender, 2)[:3]:
        piece_to(receiver, piece)
    assert taken(receiver) == [b"one"]
    elsewhere = ReceiveStream.restore(1000, receiver.message, receiver.offset, receiver.undelivered(), receiver.fin)
    sender.acknowledge(elsewhere.message, elsewhere.offset, elsewhere.received, 1 << 40, False)
    moved = SendStream.restore(
        sender.acknowledged_message, sender.acknowledged_offset, 1 << 40, sender.unacknowledged(), None, False
    )
    moved.rewind()
    for piece in pieces(moved, 3):
        piece_to(elsewhere, piece)
    assert taken(elsewhere) == [b"two!", b"three"]


def test_held_parts_of_a_message_keep_their_extent() -> None:
    receiver = ReceiveStream(1000)
    receiver.receive(0, 0, 10, b"abc", False, 100)
    assert receiver.undelivered() == [Held(0, 0, 10, memoryview(b"abc"))]


@pytest.mark.parametrize("size", [501, 1000, 2000])
def test_a_message_around_the_window_always_makes_progress(size: int) -> None:
    credit, sender, receiver = ReceiveCredit(1000), SendStream(), ReceiveStream(10_000)
    sender.limit = credit.limit
    for _ in range(3):
        sender.write(bytes(size))
    got = 0
    for _ in range(100):
        for piece in pieces(sender, 100):
            assert piece_to(receiver, piece, credit.limit) is not Arrival.GAP
        credit.update(receiver.offset, receiver.alone_until)
        got += len(taken(receiver))
        credit.update(receiver.offset, receiver.alone_until)
        sender.acknowledge(receiver.message, receiver.offset, receiver.received, credit.advertise(), False)
    assert got == 3


def test_unread_messages_hold_the_credit_back() -> None:
    credit, receiver = ReceiveCredit(1000), ReceiveStream(10_000)
    receiver.receive(0, 0, 900, bytes(900), False, credit.limit)
    receiver.receive(1, 900, 2000, bytes(100), False, credit.limit)
    credit.update(receiver.offset, receiver.alone_until)
    assert credit.limit == 1000
    receiver.take()
    credit.update(receiver.offset, receiver.alone_until)
    assert credit.limit == 2000
