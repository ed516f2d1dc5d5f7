"""Stories: faults of a cluster of three brokers and requests to it, drawn from a seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from tests.cluster_judge import asking
from tests.cluster_judge.sides import BROKERS, Side

T = TypeVar("T")
Act = Callable[[Side], Any]

_UNCLEAN: Final = "unclean.leader.election.enable"
_PRODUCER: Final = 7_000_000
"""The id of a producer that no broker has given out."""
KILL, STOP, PAUSE = "kill", "stop", "pause"


@dataclass(frozen=True)
class Step:
    """Something that is done to a cluster; its outcome is compared, and then the cluster at rest."""

    name: str
    act: Act


@dataclass
class Story:
    """A story as far as it is drawn. `down` says how each broker that is away has gone."""

    seed: str
    steps: list[Step] = field(default_factory=list)
    topics: dict[str, list[list[int]]] = field(default_factory=dict)
    """The replicas of each partition."""
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    """The next sequence number of the story's idempotent producer, if all went well."""
    down: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._values = itertools.count()

    def pick(self, *choices: T) -> T:
        return self._random.choice(choices)

    def chance(self, of: float) -> bool:
        return self._random.random() < of

    def full(self, topic: str) -> str:
        """Return the name of a topic in this story alone."""
        return f"{self.seed}.{topic}"

    def place(self) -> tuple[str, int]:
        topic = self.pick(*self.topics)
        return topic, self._random.randrange(len(self.topics[topic]))

    def replicas(self, least: int = 1, most: int = len(BROKERS)) -> list[int]:
        here = [each for each in BROKERS if each not in self.down]
        number = self._random.randint(least, most)
        brokers = here if number <= len(here) and self.chance(0.9) else BROKERS
        return self._random.sample(brokers, number)

    def shuffled(self, brokers: Iterable[int]) -> list[int]:
        found = sorted(brokers)
        return self._random.sample(found, len(found))

    def values(self) -> list[bytes]:
        return [b"value %d" % next(self._values) for _ in range(self._random.randint(1, 3))]

    def add(self, name: str, act: Act) -> None:
        self.steps.append(Step(name, act))


def story(seed: str, length: int = 8) -> Story:
    """Draw a story."""
    drawn = Story(seed)
    create(drawn)
    produce(drawn)
    while len(drawn.steps) < length:
        drawn.pick(*_DRAWN)(drawn)
    for number in drawn.shuffled(drawn.down):
        come_back(drawn, number)
    produce(drawn)
    drawn.add("forget the default", lambda side: asking.set_default(side, _UNCLEAN, None))
    return drawn


def create(story: Story) -> None:
    """Create a topic on replicas of the story's choice."""
    topic = "abcdefgh"[len(story.topics)]
    factor = min(story.pick(2, 3, 3), len(BROKERS) - len(story.down)) if story.chance(0.9) else 3
    lists = [story.replicas(factor, factor) for _ in range(story.pick(1, 2))]
    settings = {"min.insync.replicas": story.pick("1", "1", "2")}
    if story.chance(0.2):
        settings[_UNCLEAN] = "true"
    story.topics[topic] = [*lists]
    name = story.full(topic)
    story.add(f"create {topic} {lists} {settings}", lambda side: asking.create(side, name, lists, settings))


def produce(story: Story) -> None:
    """Write to the leader of a partition."""
    topic, partition = story.place()
    acks, values, name = story.pick(-1, -1, 1), story.values(), story.full(topic)
    story.add(
        f"produce {topic}-{partition} acks={acks} {values}",
        lambda side: asking.produce(side, name, partition, acks, values),
    )


def produce_again(story: Story) -> None:
    """Write with a producer's sequence numbers: mostly the next one, or one of before, or a later one."""
    topic, partition = place = story.place()
    next_sequence = story.sequences.get(place, 0)
    sequence = max(next_sequence + story.pick(0, 0, 0, 0, -2, -1, 1), 0)
    acks, values, name = story.pick(-1, -1, 1), story.values()[:1], story.full(topic)
    if sequence == next_sequence:
        story.sequences[place] = sequence + 1
    producer = {"producer_id": _PRODUCER, "producer_epoch": 0, "base_sequence": sequence}
    story.add(
        f"produce {topic}-{partition} acks={acks} {values} as {sequence}",
        lambda side: asking.produce(side, name, partition, acks, values, **producer),
    )


def go_away(story: Story) -> None:
    """Kill, stop or pause a broker that is there; at most two are away.

    None goes beside a paused one: what lies in that one's sockets is left to chance, and it might lead."""
    here = [each for each in BROKERS if each not in story.down]
    if len(here) < 2 or PAUSE in story.down.values():
        return
    number, how = story.pick(*here), story.pick(KILL, KILL, STOP, KILL if story.down else PAUSE)
    story.down[number] = how
    story.add(f"{how} {number}", lambda side: away(side, how, number))


def away(side: Side, how: str, number: int) -> None:
    """Let a broker go that is not the controller."""
    others = [each for each in side.awake if each != number]
    if others and side.controller() == number:
        side.make_controller(others[0])
    {KILL: asking.kill, STOP: asking.stop, PAUSE: Side.pause}[how](side, number)


def lose_all(story: Story) -> None:
    """Let all brokers go, one after another or at once, and one of them come back."""
    if story.down:
        return
    order = story.shuffled(BROKERS)
    if story.chance(0.5):
        story.down = dict.fromkeys(order, KILL)
        story.add(f"kill {order}", lambda side: asking.kill_all(side, order))
    else:
        for number in order:
            how = story.down[number] = story.pick(KILL, KILL, STOP)
            story.add(f"{how} {number}", partial(away, how=how, number=number))
    first = story.pick(*story.down)
    del story.down[first]
    story.add(f"start {first}, the first", lambda side: side.start(first))


def lose_controller(story: Story) -> None:
    """Let a broker be the controller, and kill it."""
    if story.down:
        return
    number = story.pick(*BROKERS)
    story.down[number] = KILL

    def act(side: Side) -> Any:
        side.make_controller(number)
        return asking.kill(side, number)

    story.add(f"kill {number}, the controller", act)


def come_back(story: Story, number: int = 0) -> None:
    """Let a broker that is away come back."""
    if not story.down:
        return
    number = number or story.pick(*story.down)
    if story.down.pop(number) == PAUSE:
        story.add(f"resume {number}", lambda side: side.resume(number))
    else:
        story.add(f"start {number}", lambda side: side.start(number))


def pause_under_write(story: Story) -> None:
    """Pause a follower and write before anybody has noticed."""
    topic, partition = story.place()
    here = [each for each in story.topics[topic][partition] if each not in story.down]
    if story.down or len(here) < 2:
        return
    number, name, values = here[-1], story.full(topic), story.values()
    story.down[number] = PAUSE

    def act(side: Side) -> Any:
        if side.leader(name, partition) == number:
            return "it leads"
        away(side, PAUSE, number)
        return asking.produce(side, name, partition, -1, values)

    story.add(f"pause {number} and produce {topic}-{partition} acks=-1 {values}", act)


def pause_under_move(story: Story) -> None:
    """Pause a broker and move a partition to it before anybody has noticed: the move waits for it."""
    topic, partition = story.place()
    now = story.topics[topic][partition]
    if story.down or len(now) == len(BROKERS):
        return
    number, name = next(each for each in BROKERS if each not in now), story.full(topic)
    wanted = story.pick([number], [number, *now], [*now, number], [now[-1], number])
    story.down[number] = PAUSE
    story.topics[topic][partition] = wanted

    def act(side: Side) -> Any:
        away(side, PAUSE, number)
        return asking.reassign(side, (name, partition, wanted))

    story.add(f"pause {number} and reassign {topic}-{partition} to {wanted}", act)
    match story.pick("", "cancel", "cancel", "supersede"):
        case "cancel":
            story.topics[topic][partition] = now
            story.add(
                f"cancel the reassignment of {topic}-{partition}",
                lambda side: asking.reassign(side, (name, partition, None)),
            )
        case "supersede":
            other = story.topics[topic][partition] = story.replicas()
            story.add(
                f"reassign {topic}-{partition} to {other}",
                lambda side: asking.reassign(side, (name, partition, other)),
            )


def part_ways(story: Story) -> None:
    """Let a leader write alone and die, and its follower come back without it."""
    if story.down:
        return
    places = [
        (topic, number)
        for topic, lists in story.topics.items()
        for number, replicas in enumerate(lists)
        if len(replicas) > 1
    ]
    if not places:
        return
    topic, partition = story.pick(*places)
    first, *others = story.topics[topic][partition]
    name, values = story.full(topic), story.values()
    story.add(f"elect preferred {topic}-{partition}", lambda side: asking.elect(side, 0, name, partition))
    for number in others:
        story.down[number] = KILL
        story.add(f"kill {number}", partial(away, how=KILL, number=number))
    story.add(
        f"produce {topic}-{partition} acks=1 {values}",
        lambda side: asking.produce(side, name, partition, 1, values),
    )
    if len(others) == len(BROKERS) - 1 and story.chance(0.5):
        come_back(story, others[0])
        return
    for number in others:
        if len(story.down) > 1:
            del story.down[number]
            story.add(f"start {number} and pause {first}", partial(swap, comes=number, goes=first))
            story.down[first] = PAUSE
            break
    else:
        story.down[first] = KILL
        story.add(f"kill {first}", lambda side: away(side, KILL, first))
        come_back(story, others[0])
    if story.chance(0.7):
        story.add(f"elect unclean {topic}-{partition}", lambda side: asking.elect(side, 1, name, partition))
    produce(story)


def swap(side: Side, comes: int, goes: int) -> None:
    """Let a broker go before another one comes: they never meet."""
    side.pause(goes)
    side.start(comes)


def ask_anyone(story: Story) -> None:
    """Ask a broker about a partition, whoever leads it."""
    topic, partition = story.place()
    here = [each for each in BROKERS if each not in story.down]
    if not here:
        return
    number, name = story.pick(*here), story.full(topic)
    what, values = story.pick(*asking.ANYONE), story.values()
    story.add(
        f"{what} at {number} {topic}-{partition}",
        lambda side: asking.ANYONE[what](side, number, name, partition, values),
    )


def set_default(story: Story) -> None:
    """Permit unclean elections at run time, or no longer, for all topics."""
    value = story.pick("true", None)
    story.add(
        f"set the default unclean.leader.election.enable={value}",
        partial(asking.set_default, key=_UNCLEAN, value=value),
    )


def elect(story: Story) -> None:
    topic, partition = story.place()
    kind, name = story.pick(0, 0, 1), story.full(topic)
    kinds = {0: "preferred", 1: "unclean"}
    story.add(
        f"elect {kinds[kind]} {topic}-{partition}", lambda side: asking.elect(side, kind, name, partition)
    )


def reassign(story: Story) -> None:
    topic, partition = story.place()
    wanted, name = story.replicas(), story.full(topic)
    if set(wanted).isdisjoint(set(BROKERS) - set(story.down)):
        return
    story.topics[topic][partition] = wanted
    story.add(
        f"reassign {topic}-{partition} to {wanted}",
        lambda side: asking.reassign(side, (name, partition, wanted)),
    )


def reassign_many(story: Story) -> None:
    """Move some partitions, and cancel the reassignments of others, in one request."""
    moves: list[tuple[str, int, list[int] | None]] = []
    for topic, lists in story.topics.items():
        for partition in range(len(lists)):
            wanted = story.pick(story.replicas(), story.replicas(), None)
            if wanted is None or not set(wanted).isdisjoint(set(BROKERS) - set(story.down)):
                moves.append((topic, partition, wanted))
                lists[partition] = wanted or lists[partition]
    said = ", ".join(
        f"reassign {topic}-{partition} to {wanted}"
        if wanted
        else f"cancel the reassignment of {topic}-{partition}"
        for topic, partition, wanted in moves
    )
    full = [(story.full(topic), partition, wanted) for topic, partition, wanted in moves]
    story.add(f"at once: {said}", lambda side: asking.reassign(side, *full))


def reassign_wrongly(story: Story) -> None:
    topic, partition = story.place()
    name = story.full(topic)
    wanted, at = story.pick(
        ([1, 1], partition), ([9], partition), ([], partition), ([1, 2], 7), ([-1], partition)
    )
    story.add(f"reassign {topic}-{at} to {wanted}", lambda side: asking.reassign(side, (name, at, wanted)))


def cancel(story: Story) -> None:
    topic, partition = story.place()
    name = story.full(topic)
    story.add(
        f"cancel the reassignment of {topic}-{partition}",
        lambda side: asking.reassign(side, (name, partition, None)),
    )


def grow(story: Story) -> None:
    topic, _ = story.place()
    name, before = story.full(topic), len(story.topics[topic])
    factor = len(story.topics[topic][0])
    added = [story.pick(story.replicas(factor, factor), story.replicas(factor, factor), story.replicas())]
    if before > 3:
        return
    if len(added[0]) == factor:
        story.topics[topic] += added
    story.add(f"add to {topic} {added}", lambda side: asking.grow(side, name, before + 1, added))


def delete(story: Story) -> None:
    if len(story.topics) < 2:
        return
    topic, _ = story.place()
    name = story.full(topic)
    story.add(f"delete {topic}", lambda side: asking.delete(side, name))
    story.topics.pop(topic)


def delete_records(story: Story) -> None:
    topic, partition = story.place()
    offset, name = story.pick(-1, -1, 1, 2, 99), story.full(topic)
    story.add(
        f"delete records of {topic}-{partition} to {offset}",
        lambda side: asking.delete_records(side, name, partition, offset),
    )


def set_topic(story: Story) -> None:
    topic, _ = story.place()
    key, value = story.pick(
        *(("min.insync.replicas", "1"), ("min.insync.replicas", "2"), ("min.insync.replicas", None)),
        *((_UNCLEAN, "true"), (_UNCLEAN, None), ("max.message.bytes", "70"), ("max.message.bytes", None)),
        ("retention.ms", "x"),
    )
    name = story.full(topic)
    story.add(f"set {topic} {key}={value}", lambda side: asking.set_topic(side, name, key, value))


def set_list(story: Story) -> None:
    """Add to a setting that is a list, or take from it."""
    topic, _ = story.place()
    operation, value = story.pick(asking.APPEND, asking.SUBTRACT), story.pick("compact", "delete", "x")
    name, key = story.full(topic), "cleanup.policy"
    sign = {asking.APPEND: "+=", asking.SUBTRACT: "-="}[operation]
    story.add(
        f"set {topic} {key}{sign}{value}", lambda side: asking.set_topic(side, name, key, value, operation)
    )


def set_all(story: Story) -> None:
    """Give a topic other settings in place of all it has."""
    topic, _ = story.place()
    settings = story.pick({}, {"min.insync.replicas": "2", _UNCLEAN: "true"}, {"cleanup.policy": "compact"})
    name = story.full(topic)
    story.add(f"set {topic} to {settings}", lambda side: asking.set_all_of_topic(side, name, settings))


def set_quota(story: Story) -> None:
    """Bound what a user, a client or an address may do."""
    topic, _ = story.place()
    name, value = story.full(topic), story.pick(1e6, 2e6, 12.5, None)
    user, client = story.pick((name, ""), ("", name), (name, name), (name, None), (None, name))
    named: dict[str, str | None] = {"user": user, "client-id": client}
    entity = {kind: each for kind, each in named.items() if each != ""}
    key = story.pick("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    story.add(f"bound {entity} {key}={value}", lambda side: asking.set_quota(side, entity, key, value))


def commit(story: Story) -> None:
    """Commit an offset of a group."""
    topic, _ = story.place()
    name, group, offset = story.full(topic), story.full("group"), story.pick(1, 2, 3)
    story.add(f"commit {topic} {offset}", lambda side: asking.commit(side, group, name, offset))


def committed(story: Story) -> None:
    """Read the offsets of the group."""
    group = story.full("group")
    story.add("read the committed offsets", lambda side: asking.committed(side, group))


def create_with_factor(story: Story) -> None:
    """Ask whether a topic could be created."""
    factor, name = story.pick(1, 2, 3, 4), story.full("z")
    story.add(f"validate factor {factor}", lambda side: asking.validate(side, name, factor))


def move(story: Story) -> None:
    """Move a replica to the other log dir of its broker."""
    topic, partition = story.place()
    name, number = story.full(topic), story.pick(*BROKERS)
    if number in story.down:
        return
    story.add(
        f"move {topic}-{partition} of {number}", lambda side: asking.move(side, number, name, partition)
    )


_DRAWN: Final[Sequence[Callable[[Story], None]]] = (
    *(create, produce, produce, produce, go_away, go_away, come_back, come_back, lose_controller),
    *(pause_under_write, elect, elect, reassign, reassign, reassign_wrongly, cancel, grow, delete),
    *(delete_records, delete_records, set_topic, set_topic, set_default, create_with_factor, move),
    *(pause_under_move, pause_under_move, part_ways, part_ways, ask_anyone, ask_anyone, lose_all, lose_all),
    *(reassign_many, reassign_many, set_list, set_all, set_quota, commit, commit, committed, committed),
    *(produce_again, produce_again, produce_again),
)
