"""Every kind of operation that writes has a crash script, and the campaign runs it."""

from __future__ import annotations

import pytest

from tests.crash.__main__ import main, scripts
from tests.crash.test_compaction_points import LOGS

CATALOGUE = {
    "append, not synced": "append_async follower_appends one_long_batch",
    "append, durable": "append_durable one_record_and_a_flush",
    "roll by size": "roll_by_size roll_by_hand",
    "roll by time": "roll_by_time",
    "roll by a full index": "roll_by_index_full",
    "flush": "flush_by_count flush_of_nothing one_record_and_a_flush",
    "recovery point written": "two_partitions roll_and_crash",
    "high watermarks checkpointed": "high_watermark_checkpoints",
    "truncate inside a segment": "truncate_inside truncate_inside_the_first_batch",
    "truncate across segments": "truncate_across truncate_what_was_rolled truncate_and_crash",
    "truncate to nothing, restart elsewhere": "truncate_to_the_start restart_above restart_below",
    "retention by time": "retention_by_time",
    "retention by size": "retention_by_size retention",
    "DeleteRecords": "delete_records log_start",
    "compaction, one to one": "compaction_one_to_one_0 swap_one_for_one",
    "compaction, several to one": "compaction_several_to_one_0 swap_many_for_one",
    "compaction, several to several": "swap_many_for_two",
    "recovery of a swap": "swap_recovery swap_recovery_of_two",
    "producer snapshot": "producer_snapshots producers producers_truncated_away retention_and_producers",
    "transactions": "transactions commits_and_aborts",
    "epoch checkpoint": "epochs truncate_nothing",
    "clean close": "clean_stops close_after_a_crash",
    "open, clean and unclean": "open_and_close open_unclean_again_and_again first_start crashes",
    "snapshot": "snapshot_of_an_open_log snapshot_of_a_log_dir",
    "restore of a snapshot": "restore_to_an_offset",
    "truncation of what a snapshot shares": "truncation_of_a_shared_segment",
    "mending of a segment": "mending_of_a_sealed_segment",
    "rebuilding of derived files": "rebuilding_of_derived_files",
    "topic made": "topic_create topic_id",
    "topic deleted": "deletions delete_and_crash",
    "a partition moved between log dirs": "move_of_a_log move_and_truncation move_and_crashes",
    "such a move ended": "move_that_is_ended",
    "a log taken over by a log dir": "stand_alone_log_taken_over",
    "metadata store: append": "store_appends store_group",
    "metadata store: snapshot": "store_snapshots store_restarts",
    "metadata store: recovery": "store_crashes",
    "group commit": "group_commit",
    "read while it is written": "read_while_written",
    "crash, recover, crash": "two_crashes restart_and_crash follower_truncates_and_follows",
    "preallocated files": "preallocated",
}


@pytest.mark.parametrize("operation", CATALOGUE)
def test_each_operation_has_its_scripts(operation: str) -> None:
    assert set(CATALOGUE[operation].split()) <= scripts().keys()


def test_forty_scripts_and_more() -> None:
    """The campaign does not shrink unnoticed."""
    assert len(scripts()) >= 60 + len(LOGS)


def test_the_campaign_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Both parts, with one script in them."""
    assert main(["--scripts", "append_durable", "--images", "4", "--second-images", "1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    one, two = (row for row in rows if row[:1] == ["append_durable"])
    moments, images, distinct, opened, second, bad = map(int, one[1:7])
    assert moments < images
    assert distinct <= images
    assert opened > 0
    assert second == bad == 0
    assert int(two[5]) > 100
