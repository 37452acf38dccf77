"""Read the partitions of a topic that this process owns, each from where its last owner stopped."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kingdom.backends.kafka.brokers import Brokers
from kingdom.backends.kafka.inbox import Inbox, PartitionOwnership, Ranges
from kingdom.errors import KingdomError, Unavailable
from kingdom.failure_log import log_failure

# How many messages are fetched ahead of the worker: enough for the time that the client needs to fetch after a pause.
_BUFFERED = 4000
# How many bytes their values may have together. A single message may have several megabytes.
_BUFFERED_BYTES = 64 << 20
_FETCHED_AT_ONCE = 500
_POLL_SECONDS = 0.2
# How long a full buffer waits for workers before reading pauses.
_ROOM_SECONDS = 0.2
_PAUSE_SECONDS = 1.0
# How long a partition is idle before its end is settled, so that a busy one costs no more statements.
_IDLE_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
# How long a bus that closes waits for the brokers.
CLOSED_SECONDS = 10.0
_T = TypeVar("_T")
_log = structlog.get_logger("kingdom.bus")


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """A partition that this process reads. `messages` wait for a worker; a worker has those at the offsets `open`."""

    number: int
    ownership: PartitionOwnership
    messages: deque[Message] = field(default_factory=deque)
    # The length of their values.
    buffered_bytes: int = 0
    open: set[int] = field(default_factory=set)
    # The offsets since the last delivery that no delivery covers yet, such as those of transaction markers.
    uncovered: list[tuple[int, int]] = field(default_factory=list)
    next_offset: int = 0
    # The last end of the partition that the client has reached, and when.
    end: int = 0
    ended_at: float = 0.0
    # True if the partition must be taken again: another process has taken it, or messages may be missing.
    is_lost: bool = False

    @property
    def can_be_taken(self) -> bool:
        """Return whether a worker can get messages."""
        return bool(self.messages) and not self.open and not self.is_lost

    def cover(self, offset: int) -> tuple[tuple[int, int], ...] | None:
        """Return the offsets that are handled with the message at an offset, or None if it is handled already."""
        if offset > self.next_offset:
            self.uncovered += _without(self.next_offset, offset, self.ownership.handled)
        self.next_offset = max(self.next_offset, offset + 1)
        if self.ownership.is_handled(offset):
            return None
        covered, self.uncovered = (*self.uncovered, (offset, offset + 1)), []
        return covered

    def rest(self, now: float) -> Ranges:
        """Return the offsets before the end that no delivery will cover, if the partition is idle."""
        if self.messages or self.open or self.is_lost or now < self.ended_at + _IDLE_SECONDS:
            return ()
        return (*self.uncovered, *_without(self.next_offset, self.end, self.ownership.handled))

    def skip(self, rest: Ranges) -> None:
        """Continue at the end, because the rest before it is settled."""
        self.ownership = self.ownership.settle(rest)
        self.uncovered, self.next_offset = [], max(self.next_offset, self.end)


class TopicReader:
    """Reads one topic in a thread, as a member of the consumer group of its stream.

    `on_messages` is called in the event loop when there may be messages to take. With `creates_topic`, the topic is
    created if it does not exist.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        group: str,
        inbox: Inbox,
        on_messages: Callable[[], None],
        *,
        creates_topic: bool,
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._creates_topic = creates_topic
        self._inbox = inbox
        self._on_messages = on_messages
        self._lock = threading.Lock()
        self._partitions: dict[int, OwnedPartition] = {}
        self._stopping = threading.Event()
        # Notified when the buffer is no longer full.
        self._room = threading.Condition(self._lock)
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._consumer = Consumer(
            {
                **brokers.client_options(),
                "group.id": group,
                "group.protocol": "consumer",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # A position that the topic no longer has is an error: a person must decide whether to skip events.
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )
        self._thread = threading.Thread(target=self._read_until_stopped, name=f"kingdom-read-{topic}", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    async def close(self) -> None:
        """Stop reading and leave the group. If the brokers do not answer in time, they notice it by themselves."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, CLOSED_SECONDS)
        if self._thread.is_alive():
            _log.warning("left a consumer group without an answer of the brokers", topic=self.topic)

    def take(self, limit: int) -> list[tuple[OwnedPartition, Message]]:
        """Take messages from partitions without open messages. So two workers never have events of the same key."""
        taken: list[tuple[OwnedPartition, Message]] = []
        with self._lock:
            idle = [each for each in self._partitions.values() if each.can_be_taken]
            for partition in idle:
                # Take from several partitions, so that a busy one does not keep the others waiting, but not from all of
                # them: the next claim begins while the events of this one are handled and settled.
                share = max(2 * limit // len(idle), 1)
                while partition.messages and share and len(taken) < limit:
                    message = partition.messages.popleft()
                    partition.buffered_bytes -= len(message)
                    partition.open.add(_offset(message))
                    taken.append((partition, message))
                    share -= 1
            if not self._is_full():
                self._room.notify()
        return taken

    def give_back(self, messages: Sequence[tuple[OwnedPartition, Message]]) -> None:
        """Put taken messages back, to be taken again."""
        with self._lock:
            for partition, message in sorted(messages, key=lambda each: -_offset(each[1])):
                partition.open.discard(_offset(message))
                partition.messages.appendleft(message)
                partition.buffered_bytes += len(message)

    def settle(self, messages: Iterable[tuple[OwnedPartition, int]]) -> None:
        """Forget messages that are settled, by their offsets."""
        with self._lock:
            for partition, offset in messages:
                partition.open.discard(offset)

    def owns(self, partition: OwnedPartition) -> bool:
        """Return whether this process still reads a partition under the same epoch."""
        with self._lock:
            return self._partitions.get(partition.number) is partition

    @property
    def partitions(self) -> list[OwnedPartition]:
        """Return the partitions that this process reads."""
        with self._lock:
            return list(self._partitions.values())

    @property
    def has_messages(self) -> bool:
        """Return whether there are messages to take."""
        with self._lock:
            return any(each.can_be_taken for each in self._partitions.values())

    def _read_until_stopped(self) -> None:
        is_subscribed = False
        while not self._stopping.is_set():
            try:
                if not is_subscribed:
                    self._subscribe()
                    is_subscribed = True
                self._limit_buffer()
                self._receive(self._fetch())
                self._take_again()
                self._settle_ends()
            except Exception as error:  # noqa: BLE001 - without its thread this process would read the topic no more
                self._log_failure("cannot read from Kafka, trying again", error)
                self._lose_partitions()
                self._stopping.wait(_PAUSE_SECONDS)
        self._consumer.close()

    def _lose_partitions(self) -> None:
        # The failed call may have dropped messages that the client counts as read.
        with self._lock:
            for each in self._partitions.values():
                each.is_lost = True

    def _subscribe(self) -> None:
        if self._creates_topic:
            self._brokers.create_topics({self.topic: self._brokers.partitions})
        self._consumer.subscribe([self.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def _fetch(self) -> list[Message]:
        """Wait for a message, and return all that have arrived. `consume` alone would wait until its list is full."""
        first = self._consumer.poll(0 if self._paused else _POLL_SECONDS)
        # A message without a value is false.
        if first is None:
            return []
        return [first, *self._consumer.consume(_FETCHED_AT_ONCE, 0)]

    def _receive(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if problem := message.error():
                self._note_problem(message, problem)
        if self._buffer([message for message in messages if not message.error()]):
            self._call_in_loop(self._on_messages)

    def _note_problem(self, message: Message, problem: KafkaError) -> None:
        if problem.code() != KafkaError._PARTITION_EOF:
            _log.error("cannot read a partition", topic=self.topic, error=problem.str())
            return
        with self._lock:
            if partition := self._partitions.get(message.partition() or 0):
                partition.end, partition.ended_at = _offset(message), time.monotonic()

    def _buffer(self, messages: Sequence[Message]) -> bool:
        with self._lock:
            for message in messages:
                # A message of a partition that was revoked meanwhile belongs to another process.
                if partition := self._partitions.get(message.partition() or 0):
                    partition.messages.append(message)
                    partition.buffered_bytes += len(message)
        return bool(messages)

    def _limit_buffer(self) -> None:
        """Wait while the buffer is full. If it stays full, pause, because the group expects regular polls.

        A pause is costly: the client drops what it has fetched, and needs 0.3 seconds to fetch it again.
        """
        with self._room:
            is_full = not self._room.wait_for(lambda: not self._is_full(), _ROOM_SECONDS)
        if is_full == self._paused:
            return
        change = self._consumer.pause if is_full else self._consumer.resume
        change(self._consumer.assignment())
        self._paused = is_full

    def _is_full(self) -> bool:
        partitions = self._partitions.values()
        has_many = sum(len(each.messages) for each in partitions) >= _BUFFERED
        return has_many or sum(each.buffered_bytes for each in partitions) >= _BUFFERED_BYTES

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            # A partition that is assigned without its offset would never be read.
            while not self._stopping.is_set():
                try:
                    self._own(self._take(each))
                except Exception as error:  # noqa: BLE001 - the client would go on without the partition
                    self._log_failure("cannot take a partition, trying again", error, partition=each.partition)
                    self._stopping.wait(_PAUSE_SECONDS)
                else:
                    break
        consumer.incremental_assign(partitions)
        if self._paused:
            consumer.pause(partitions)

    def _take_again(self) -> None:
        """Take lost partitions again. The brokers still give them to this process, else they would be revoked."""
        with self._lock:
            lost = [number for number, each in self._partitions.items() if each.is_lost]
        for number in lost:
            place = TopicPartition(self.topic, number)
            partition = self._take(place)
            self._consumer.seek(place)
            self._own(partition)

    def _settle_ends(self) -> None:
        """Settle what comes after the last events of idle partitions, such as transaction markers.

        The brokers may remove these offsets. A position before those that remain would look as if events were lost.
        """
        now = time.monotonic()
        with self._lock:
            rests = {number: rest for number, each in self._partitions.items() if (rest := each.rest(now))}
        if not rests:
            return
        # Nothing changes meanwhile, because this thread receives the messages, and now it waits.
        idle = [self._partitions[number] for number in rests]
        for each in idle:
            each.ended_at = now
        settling = self._inbox.settle(self.topic, {each.number: each.ownership for each in idle}, rests)
        try:
            settled = self._wait_for(asyncio.run_coroutine_threadsafe(settling, self._loop))
        except KingdomError as error:
            _log.warning("cannot settle the ends of partitions; trying again", topic=self.topic, error=str(error))
            return
        for each in idle:
            if each.number in settled:
                each.skip(rests[each.number])
            else:
                each.is_lost = True

    def _own(self, partition: OwnedPartition) -> None:
        with self._lock:
            self._partitions[partition.number] = partition

    def _take(self, place: TopicPartition) -> OwnedPartition:
        """Become the owner of a partition, and set its offset to where the last owner stopped."""
        first, _ = self._consumer.get_watermark_offsets(place, timeout=_ANSWER_SECONDS)
        taking = self._inbox.take_partition(self.topic, place.partition, first)
        taken = self._wait_for(asyncio.run_coroutine_threadsafe(taking, self._loop))
        place.offset = taken.next_offset
        return OwnedPartition(place.partition, taken, next_offset=taken.next_offset)

    def _wait_for(self, answer: Future[_T]) -> _T:
        # The inbox limits the time. A second attempt beside the first one would have to compete with it.
        while not self._stopping.is_set():
            if wait([answer], _POLL_SECONDS).done:
                return answer.result()
        answer.cancel()
        raise Unavailable("the bus closes")

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for each in partitions:
                self._partitions.pop(each.partition, None)
        # The client remembers the pause of a partition that it loses, and would not read it when it gets it back.
        consumer.resume(partitions)
        consumer.incremental_unassign(partitions)

    def _log_failure(self, message: str, error: Exception, **fields: object) -> None:
        log_failure(_log, message, error, expected=(KafkaException, KingdomError), topic=self.topic, **fields)

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)


def _without(start: int, end: int, handled: Ranges) -> list[tuple[int, int]]:
    """Return the parts of a range of offsets that are not handled."""
    parts = []
    for handled_start, handled_end in handled:
        if start < min(handled_start, end):
            parts.append((start, min(handled_start, end)))
        start = max(start, handled_end)
    return [*parts, (start, end)] if start < end else parts


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise RuntimeError("a message without an offset")
    return offset
