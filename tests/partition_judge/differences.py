"""Differences between the answers of the two sides, and the documented ones among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from logstore.format.batch import walk
from tests.judge.resolving import batches_of
from tests.judge.sides import Answer, Operation, State
from tests.partition_judge.kafka import Kafka
from tests.partition_judge.ours import Ours

_BOUNDS: Final = ("high_watermark", "last_stable")


def differences(operation: Operation, ours: Answer, kafka: Answer) -> list[str]:
    """Return the differences of two answers."""
    found: list[str] = []
    theirs = _as_here(ours.state, _compared(kafka.state))
    if _is_of_former_life(operation, ours, kafka) or _is_of_a_later_segment(operation, ours, kafka):
        pass
    elif ours.error != kafka.error:
        said = (f"{each.error or 'succeeds'} {each.message}".strip() for each in (ours, kafka))
        found.append("answer: ours {}, Kafka's {}".format(*said))
    elif ours.error is None:
        result = kafka.result
        if operation["op"] == "delete":
            low_watermark = theirs["low_watermark"]
            wanted = theirs["high_watermark"] if operation["offset"] == -1 else operation["offset"]
            result = {"low_watermark": low_watermark, "is_done": low_watermark >= wanted}
        elif operation["op"] == "fetch" and ours.result is None:
            # In a session, a partition of which there is no news is left out.
            result = None if not result["data"] and "diverging" not in result else result
        elif operation["op"] == "fetch":
            result = {**_not_below_the_start(result), "data": _read(operation, ours, result["data"])}
        elif operation["op"] == "list" and operation["timestamp"] == -1:
            result = [result[0], max(result[1], theirs["start"]), result[2]]
        found += _plainly("result", ours.result, result)
    theirs = _fetched_as_here(operation, ours.state, theirs)
    return [*found, *_plainly("", _compared(ours.state), theirs)]


def _fetched_as_here(operation: Operation, ours: State, kafka: State) -> State:
    """Return Kafka's state with the answers to waiting fetches as ours, where they may differ."""
    if not kafka.get("fetched"):
        return kafka
    here, leads, new = ours.get("fetched", {}), ours.get("leads", False), str(operation.get("number"))
    fetched = {
        number: _answer_as_here(here[number], each, leads=leads) if number in here else each
        for number, each in kafka["fetched"].items()
    }
    if new in fetched and new in here and "high_watermark" in here[new]:
        # Kafka's may be read again at once, when the fetch has counted.
        fetched[new]["high_watermark"] = here[new]["high_watermark"]
    return {**kafka, "fetched": fetched}


def _answer_as_here(ours: State, kafka: State, *, leads: bool) -> State:
    """Return an answer of Kafka's as ours.

    A follower serves nobody before its log was compared; a leader refuses a follower's former life.
    """
    is_refused = ours.get("error") == "NOT_LEADER_OR_FOLLOWER"
    if is_refused and (not leads or kafka.get("error") == "OFFSET_OUT_OF_RANGE" or "diverging" in kafka):
        return ours
    if not ours and not kafka.get("data", "?") and "diverging" not in kafka:
        return ours  # in a session, a partition of which there is no news is left out
    here, there = ours.get("data"), kafka.get("data")
    if not here or not there:
        return kafka
    return {**kafka, "data": here if here.startswith(there) or there.startswith(here) else there}


def _read(operation: Operation, ours: Answer, kafka: str) -> str:
    """Return Kafka's bytes as ours, if both begin alike and end within bounds: reads end with a segment."""
    data: str = ours.result["data"]
    bound = "last_stable" if operation.get("committed") else "high_watermark"
    end = ours.state["end" if operation["replica"] >= 0 else bound]
    is_within = all(batch.next_offset <= end for batch in walk(bytes.fromhex(data)))
    is_alike = data.startswith(kafka) or kafka.startswith(data)
    return data if is_alike and is_within and kafka and data and operation["max"] > 1 else kafka


def _is_of_former_life(operation: Operation, ours: Answer, kafka: Answer) -> bool:
    """Whether a fetch of a follower's former life is refused here before it is looked at."""
    is_refused = (
        operation["op"] == "fetch" and operation["replica"] >= 0 and "NOT_LEADER" in (ours.error or "")
    )
    is_answered = kafka.error == "OFFSET_OUT_OF_RANGE" or "diverging" in (kafka.result or {})
    return is_refused and is_answered and operation["broker_epoch"] >= 0


def _compared(state: State) -> State:
    """Return the state without what cannot be compared: a fetcher that truncates goes by the log."""
    fetcher = state.get("fetcher")
    if not fetcher or not fetcher.get("truncating"):
        return state
    if not state["epochs"]:
        # It truncates to the high watermark, at the latest with its next request.
        return {**state, "fetcher": {**fetcher, "truncating": False}}
    return {**state, "fetcher": {**fetcher, "offset": None, "last_epoch": -1}}


def _not_below_the_start(bounds: State) -> State:
    """Return bounds as ours: where the log starts inside of a batch, Kafka's may be that batch's offset."""
    below: State = {
        name: bounds["start"] for name in _BOUNDS if name in bounds and bounds[name] < bounds["start"]
    }
    return {**bounds, **below}


def _as_here(ours: State, kafka: State) -> State:
    """Return Kafka's state with what is documented to be otherwise here."""
    kafka = _not_below_the_start(kafka)
    if not kafka.get("leads") or not ours.get("leads"):
        return kafka
    # A member of the ISR counts while it is dead, too.
    starts = [
        kafka["replicas"][str(each)]["start"] for each in kafka["maximal"] if str(each) in kafka["replicas"]
    ]
    return {**kafka, "low_watermark": min([kafka["low_watermark"], *starts])}


def _is_of_a_later_segment(operation: Operation, ours: Answer, kafka: Answer) -> bool:
    """Whether Kafka's lookup of a time ends in one segment; `tests/judge/differences.py` judges that."""
    if operation["op"] != "list" or operation["timestamp"] in (-1, -2):
        return False
    bound = ours.state.get("last_stable" if operation["committed"] else "high_watermark", 0)
    is_found = ours.error == "OFFSET_NOT_AVAILABLE" or (ours.result is not None and ours.result[1] < bound)
    return operation["has_deleted"] or (is_found and kafka.error is None and kafka.result is None)


def _plainly(name: str, ours: Any, kafka: Any) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(kafka, dict):
        for key in sorted(ours.keys() | kafka.keys()):
            yield from _plainly(f"{name} {key}".strip(), ours.get(key), kafka.get(key))
    elif ours != kafka:
        yield f"{name}: ours {ours}, Kafka's {kafka}"


def _settle_fetches(operation: Operation, here: State, there: State, ours: Ours, kafka: Kafka) -> str | None:
    """Answer or forget a fetch that waits on one side only, if that is documented."""
    for number, answer in here.get("fetched", {}).items():
        asked = ours.fetches[int(number)]
        is_of_former_life = 0 <= asked["broker_epoch"] < ours.newest_epoch(asked["replica"])
        if "error" in answer and (operation["op"] == "session" or is_of_former_life):
            ours.fetched.pop(number)
            kafka.perform({"op": "forget", "number": int(number)})
            name = "of a former life" if is_of_former_life else "from a broker without a session"
            return f"a fetch {name} waits no more"
        if int(number) not in there["fetching"]:
            continue
        is_behind = 0 <= asked["log_start"] < here["start"]
        is_uncounted = asked["replica"] < 0 and asked["min"] > 1 and answer.get("data")
        if is_behind or is_uncounted or "error" in answer or "preferred" in answer:
            # Kafka's would get the same answer later.
            kafka.perform({"op": "answer_now", "number": int(number)})
            return (
                "a fetch waits for fewer bytes"
                if is_uncounted
                else "a fetch with another answer waits no more"
            )
    for number in here.get("fetching", ()):
        asked = ours.fetches[number]
        bound = here["last_stable" if asked["committed"] else "high_watermark"]
        is_at_roll = bound in {each.base_offset for each in ours.log.segments}
        is_above, is_uncounted = (
            asked["offset"] > bound,
            asked["min"] > 1 and (asked["committed"] or is_at_roll),
        )
        if str(number) in there["fetched"] and asked["replica"] < 0 and (is_above or is_uncounted):
            ours.abandon(number)
            kafka.perform({"op": "forget", "number": number})
            return "a fetch above the end waits" if is_above else "a fetch waits for more bytes"
    return None


def settle(operation: Operation, mine: Answer, theirs: Answer, ours: Ours, kafka: Kafka) -> str | None:
    """Bring the sides together after a documented difference and return its name; None if there is none."""
    here, there = mine.state, theirs.state and _not_below_the_start(theirs.state)
    if here.get("leads") and there.get("leads") and here["high_watermark"] > there["high_watermark"]:
        # By Kafka's own rule, which it would apply at the next fetch or append.
        kafka.perform({"op": "advance"})
        return "Kafka's high watermark waits for a fetch"
    if operation["op"] == "role" and here.get("leads") and here["high_watermark"] < there["high_watermark"]:
        ours.advance()
        return "a repeated order moves Kafka's high watermark"
    if (what := _settle_fetches(operation, here, there, ours, kafka)) is not None:
        return what
    last = max([each.next_offset for each in batches_of(ours)], default=0) if here else 0
    if here and not here["leads"] and here["high_watermark"] == last < there["high_watermark"] <= here["end"]:
        kafka.perform({"op": "lower", "offset": last})
        return "the high watermark is at most the end of the last batch"
    is_empty = here and here["start"] == here["end"] == there.get("end")
    if is_empty and any(there[name] and not here[name] for name in ("undecided", "epochs")):
        kafka.perform({"op": "begin_anew"})
        return "our log begins anew where it has nothing of the leader's history"
    forgotten = set(here.get("undecided", ())) - set(there.get("undecided", ()))
    if forgotten and max(forgotten) < here["start"]:
        ours.forget_transactions(forgotten)
        return "Kafka forgets transactions that began below the log start"
    if here and there and here["last_stable"] < there["last_stable"]:
        producers = ours.log.producer_state
        markers = [last for first, last in producers.unreplicated.items() if first < there["last_stable"]]
        producers.advance_high_watermark(max(markers, default=-1) + 1)
        return "Kafka forgets which markers are not replicated" if markers else None
    if is_empty and here["epochs"] and not there["epochs"]:
        epoch, offset = here["epochs"][-1]
        is_truncating = here.get("fetcher", {}).get("truncating", False)
        kafka.perform({"op": "assign", "epoch": epoch, "offset": offset, "truncating": is_truncating})
        return "our log keeps the epoch of its last record"
    return None
