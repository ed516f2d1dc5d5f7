"""The behavior that Kafka's own tests fix for replication, one row each, and our test for it.

A value is a test (`path::name`), or several separated by commas, or `docs/differences.md: words`, with words
of the row there that explains the difference. `tests/test_kafka_rows.py` checks that all of them exist. Keys
start with the section of the replication reference.
"""

from __future__ import annotations

_TESTS = "tests/replication/"
_DIFFERENCES = "docs/differences.md: "


def _shown(*tests: str) -> str:
    return ",".join(f"{_TESTS}{test}" for test in tests)


_EPOCH_CACHE = {
    "6.1 assignments: what is left, and what each epoch's end is": _shown(
        "test_rows.py::test_6_1_assign_and_ask"
    ),
    "6.1 cuts at either side, negative ones among them": _shown("test_rows.py::test_6_1_cuts"),
    "6.1 persisted, reopened: the same entries": _shown(
        "test_rows.py::test_6_6_epochs_of_a_sole_replica_that_bounces"
    ),
    "6.1 the epoch of an offset": _shown("test_rows.py::test_6_1_epoch_of_an_offset"),
    "6.1 the epoch before the latest": _DIFFERENCES + "the epoch before or after one",
}

_PARTITION = {
    "6.2 divergence of a fetch, 17 records of epochs 0, 3, 4, 7, 9": _shown(
        "test_reconcile.py::test_divergence_of_a_fetch"
    ),
    "6.2 the same with a log start at 5 and at 10": _shown(
        "test_reconcile.py::test_divergence_above_a_log_start"
    ),
    "6.2 make_leader without records: the epoch cache answers already": _shown(
        "test_partition.py::test_an_election_is_in_the_epoch_cache_before_any_record"
    ),
    "6.2 questions to a leader under e-1, none, e, e+1": _shown(
        "test_partition.py::test_requests_to_a_leader_of_epoch_5"
    ),
    "6.2 questions to a follower under e-1, none, e, e+1": _shown(
        "test_partition.py::test_requests_to_a_follower_of_epoch_5"
    ),
    "6.2 a fetch of who is no replica, with and without epoch": _shown(
        "test_partition.py::test_a_stranger_fetches"
    ),
    "6.2 more replicas within the leader epoch": _shown(
        "test_partition.py::test_a_new_assignment_within_the_epoch"
    ),
    "6.2 a consumer at a follower without client metadata": _shown(
        "test_fetch_service.py::test_who_asks_a_follower"
    ),
    "6.2 latest offset right after an election": _shown(
        "test_schedules_of_members.py::test_s37_a_consumer_beyond_the_new_high_watermark"
    ),
    "6.2 a log that starts at 5 and batches below it": _shown(
        "test_following.py::test_a_log_may_begin_inside_a_batch",
        "test_schedules_of_logs.py::test_s20_a_batch_that_lies_across_the_log_start",
    ),
    "6.2 a follower below the epoch start does not join, at it it is proposed": _shown(
        "test_schedules_of_members.py::test_s30_nobody_joins_below_the_start_of_the_epoch",
        "test_membership.py::test_expansion",
    ),
    "6.2 expansion confirmed: committed = maximal": _shown("test_membership.py::test_expansion"),
    "6.2 refused for good: pending, maximal ISR kept": _shown(
        "test_membership.py::test_a_definite_refusal_leaves_the_larger_isr"
    ),
    "6.2 refused for good: one send only": _DIFFERENCES + "an ISR proposal that was permanently refused",
    "6.2 ineligible or not attempted: back to the committed ISR": _shown(
        "test_membership.py::test_what_was_never_written_is_taken_back"
    ),
    "6.2 server error, network error: the same again": _shown(
        "test_membership.py::test_no_real_answer_is_asked_again"
    ),
    "6.2 a second proposal while one is in flight is not sent": _shown(
        "test_isr.py::test_members_to_drop", "test_membership.py::test_shrinking"
    ),
    "6.2 LeaderAndIsr while one is in flight": _shown(
        "test_membership.py::test_a_new_word_of_the_controller_ends_what_is_pending",
        "test_isr_channel.py::test_a_proposal_that_was_overtaken_waits_for_the_old_answer_then_goes",
    ),
    "6.2 fenced or shutting down, though caught up: not added, not waited for": _shown(
        "test_schedules_of_isrs.py::test_s32_but_not_for_one_that_is_shutting_down",
        "test_partition.py::test_a_replica_that_died_is_not_waited_for",
    ),
    "6.2 caught up within the lag and eligible: the watermark waits": _shown(
        "test_schedules_of_isrs.py::test_s32_a_follower_that_returns_under_load"
    ),
    "6.2 broker epochs of fetch and metadata that differ": _shown(
        "test_partition.py::test_a_fetch_of_an_earlier_life_is_refused", "test_isr.py::test_who_may_join"
    ),
    "6.2 no shrink right after an election": _shown(
        "test_isr_profiles.py::test_a_member_that_never_fetched_has_the_whole_bound"
    ),
    "6.2 silent for lag + 1: shrink proposed, the watermark moves when it is confirmed": _shown(
        "test_membership.py::test_shrinking",
        "test_schedules_of_members.py::test_s29a_a_shrink_that_is_confirmed_lets_the_watermark_go",
    ),
    "6.2 at the end and silent for ever: never proposed": _shown(
        "test_membership.py::test_an_idle_follower_at_the_end_stays"
    ),
    "6.2 reaches the end of its previous fetch each time: stays": _shown(
        "test_membership.py::test_a_follower_that_reaches_each_previous_end_stays"
    ),
    "6.2 ISR below its minimum: the watermark stands": _shown(
        "test_partition.py::test_the_watermark_stands_while_too_few_are_in_sync"
    ),
    "6.2 gauges under and at min ISR": _shown("test_isr_profiles.py::test_gauges"),
    "6.2 the checkpointed watermark, held to the log's end": _shown(
        "test_partition.py::test_the_checkpointed_watermark_is_where_a_leader_starts",
        "test_schedules_of_logs.py::test_s10_a_checkpoint_ahead_of_its_log",
    ),
    "6.2 make_leader again, same epoch: nothing is reset": _shown(
        "test_partition.py::test_a_new_assignment_within_the_epoch"
    ),
    "6.2 re-elected: ends kept, lag clocks restarted": _shown(
        "test_partition.py::test_re_election_of_the_leader_keeps_ends_and_restarts_the_lag_clock"
    ),
    "6.2 lower partition epoch: ignored": _shown(
        "test_schedules_of_members.py::test_s44_reordered_and_repeated_words_of_the_controller"
    ),
    "6.2 make_follower forgets the leadership": _shown(
        "test_partition.py::test_becoming_a_follower_forgets_the_leadership"
    ),
    "6.2 under-replicated without the replicas that are being added": _shown(
        "test_reassignment_faults.py::test_under_replicated_by_what_was_there"
    ),
    "6.2 DeleteRecords past the high watermark": _shown(
        "test_delete_records.py::test_beyond_the_high_watermark_nothing_is_deleted"
    ),
}

_REPLICA = {
    "6.3 a new replica": _shown("test_replica.py::test_a_new_replica_is_unknown"),
    "6.3 three fetches: when it was caught up": _shown(
        "test_replica.py::test_caught_up_means_the_end_as_of_the_previous_fetch"
    ),
    "6.3 reset, leader re-elected": _shown("test_replica.py::test_a_re_elected_leader_keeps_what_it_knows"),
    "6.3 reset, new leader": _shown("test_replica.py::test_a_new_leader_knows_nothing_of_its_followers"),
    "6.3 at the end: caught up however late": _shown(
        "test_replica.py::test_a_replica_at_the_leaders_end_is_caught_up_however_long_it_was_silent"
    ),
    "6.3 an older broker epoch": _shown("test_partition.py::test_a_fetch_of_an_earlier_life_is_refused"),
    "6.3 expiration: stuck": _shown("test_membership.py::test_shrinking"),
    "6.3 expiration: never fetched": _shown(
        "test_isr_profiles.py::test_a_member_that_never_fetched_has_the_whole_bound"
    ),
    "6.3 expiration: slow but arriving": _shown(
        "test_membership.py::test_a_follower_that_reaches_each_previous_end_stays"
    ),
    "6.3 expiration: caught up, then silent": _shown(
        "test_schedules_of_isrs.py::test_s34_an_idle_topic_keeps_its_isr"
    ),
    "6.3 checkpoint before any partition, and of two topics": _shown(
        "test_rows.py::test_6_3_the_checkpoint_of_high_watermarks"
    ),
    "6.3 crash and restart, both in turn": _shown("test_rows.py::test_6_3_crash_and_restart"),
}

_MANAGER = {
    "6.4 produce with acks=3": _shown("test_replica_manager.py::test_other_acks_are_refused"),
    "6.4 leader becomes follower, acks=all pending": _shown(
        "test_answers_after_leading.py::test_the_batch_is_not_in_the_new_leaders_log"
    ),
    "6.4 a fetch that waits when its leader becomes follower": _shown(
        "test_replica_manager.py::test_a_parked_fetch_when_its_leader_steps_down",
        "test_fetch_service.py::test_a_change_of_leader_ends_the_wait",
    ),
    "6.4 a fetch beyond the high watermark": _shown(
        "test_replica_manager.py::test_beyond_the_high_watermark"
    ),
    "6.4 failed, fenced or diverging read: the follower's state stands": _shown(
        "test_partition.py::test_a_failed_or_diverging_read_counts_for_nothing"
    ),
    "6.4 two partitions, one error: both answered at once": _shown(
        "test_fetch_service.py::test_one_error_and_the_other_partition_is_served_at_once"
    ),
    "6.4 the answer's watermark is from before the fetch": _shown(
        "test_partition.py::test_the_answer_carries_the_watermark_from_before_the_fetch"
    ),
    "6.4 missed leader updates: reconciled by OffsetsForLeaderEpoch at the next one": _shown(
        "test_schedules.py::test_s12_missed_epochs_of_the_same_leader",
        "test_schedules_of_logs.py::test_s17_an_answer_about_an_epoch_that_is_over",
    ),
    "6.4 StopReplica: epochs -2, -1, current - 1, current, current + 1": _shown(
        "test_orders.py::test_stop_replica"
    ),
    "6.4 StopReplica of an older controller": _shown(
        "test_orders.py::test_stop_replica_of_an_old_controller_or_a_dead_disk"
    ),
    "6.4 StopReplica with delete of a log without a role": _shown(
        "test_orders.py::test_stop_replica_of_a_log_without_a_role"
    ),
    "6.4 StopReplica answers who waits": _shown("test_orders.py::test_stop_replica"),
    "6.4 an offline dir: KAFKA_STORAGE_ERROR": _shown(
        "test_flushes.py::test_all_replicas_of_a_failed_dir_resign_together"
    ),
    "6.4 topic ids: mismatch, absent, late": _shown(
        "test_orders.py::test_what_is_refused_for_one_partition",
        "test_topics.py::test_a_replica_in_use_is_not_exchanged_for_its_namesakes",
    ),
    "6.4 a log that cannot be made: the others are": _shown(
        "test_flushes.py::test_one_failing_log_leaves_the_others_alone",
        "test_schedules_of_disks.py::test_s58_one_of_ten_logs_cannot_be_made",
    ),
    "6.4 LeaderAndIsr, equal epoch, higher partition epoch: ignored": _DIFFERENCES
    + "a LeaderAndIsr of an equal leader epoch",
    "6.4 LeaderAndIsr, higher epoch, same leader: fetcher restarted": _shown(
        "test_rows.py::test_6_4_a_higher_epoch_of_the_same_leader_starts_the_fetcher_anew"
    ),
    "6.4 make_followers: fetcher removed before the end is read": _shown(
        "test_follower.py::test_adding_reads_the_end_of_the_log_when_it_is_called"
    ),
    "6.4 clean shutdown: every high watermark checkpointed": _shown(
        "test_rows.py::test_6_4_a_clean_shutdown_checkpoints_every_high_watermark"
    ),
    "6.4 preferred read replica: returned at once, without records": _shown(
        "test_fetch_service.py::test_a_consumer_is_sent_to_a_replica_in_its_rack"
    ),
    "6.4 preferred read replica: not if it lacks the offset, is out of the ISR, or is asked": _shown(
        "test_fetch_service.py::test_or_is_served_by_the_leader",
        "test_fetch_service.py::test_who_asks_a_follower",
    ),
    "6.4 a new leader that the metadata does not know: no fetcher, log made": _DIFFERENCES
    + "a new leader whose address is not known",
    "6.4 become follower during shutdown: no fetcher": _shown(
        "test_rows.py::test_6_4_who_is_about_to_stop_follows_nobody"
    ),
    "6.4 a waiting fetch, and a cut": _shown("test_fetch_service.py::test_a_cut_ends_the_wait"),
    "6.4 a waiting fetch, and a roll": _shown("test_fetch_service.py::test_a_roll_ends_the_wait"),
    "6.4 a waiting fetch, and a change of leader": _shown(
        "test_fetch_service.py::test_a_change_of_leader_ends_the_wait"
    ),
    "6.4 DeleteRecords waits for every live follower": _shown(
        "test_delete_records.py::test_it_is_answered_when_every_live_follower_has_deleted"
    ),
}

_FETCHERS = {
    "6.5 a simple fetch: log equal, watermark one fetch later": _shown(
        "test_schedules.py::test_s0a_the_high_watermark_travels_by_fetches"
    ),
    "6.5 the request fails: all of it pauses": _shown(
        "test_follower.py::test_a_lost_connection_pauses_what_was_asked"
    ),
    "6.5 one partition errs: it alone pauses": _shown(
        "test_follower.py::test_an_error_pauses_the_partition_where_it_is"
    ),
    "6.5 fenced in the same epoch: failed": _shown(
        "test_follower.py::test_fenced_is_failed_until_the_controller_speaks"
    ),
    "6.5 unknown epoch: the state stays, goes on when the leader knows": _shown(
        "test_schedules.py::test_s5_a_fetch_from_the_future",
        "test_follower.py::test_errors_while_reconciling",
    ),
    "6.5 epochs 0, 2, 4 against 1, 3, 5 converge": _shown("test_follower.py::test_two_histories_converge"),
    "6.5 no epochs, or a leader too old": _shown(
        "test_reconcile.py::test_truncation_targets", "test_follower.py::test_a_leader_too_old_to_tell"
    ),
    "6.5 removed while the epoch answer is under way": _shown(
        "test_follower.py::test_6_5_an_epoch_answer_after_removal_is_dropped"
    ),
    "6.5 another epoch while the answer is under way": _shown(
        "test_follower.py::test_an_epoch_answer_of_an_older_epoch_is_ignored"
    ),
    "6.5 added again in the same epoch: not cut again": _shown(
        "test_schedules_of_members.py::test_s44_reordered_and_repeated_words_of_the_controller"
    ),
    "6.5 a divergence for a partition that was removed": _shown(
        "test_follower.py::test_answers_after_removal_are_dropped"
    ),
    "6.5 the leader was emptied": _shown("test_follower.py::test_the_leader_was_emptied"),
    "6.5 the leader's log starts above the follower's end": _shown(
        "test_follower.py::test_out_of_range_low",
        "test_schedules_of_logs.py::test_s18_a_follower_below_the_leaders_log_start",
    ),
    "6.5 fenced or unknown while asking for bounds": _shown(
        "test_follower.py::test_errors_while_asking_for_bounds"
    ),
    "6.5 a corrupt batch: fetched again": _shown("test_follower.py::test_damaged_bytes_are_fetched_again"),
    "6.5 an answer names what was not asked": _shown(
        "test_follower.py::test_an_answer_to_another_question_is_a_broken_protocol"
    ),
    "6.5 an append or a cut fails for one: the others go on": _shown(
        "test_follower.py::test_a_broken_log_stops_its_partition"
    ),
    "6.5 a sequence of diverging answers": _shown("test_follower.py::test_successive_divergences"),
    "6.5 where a follower cuts": _shown("test_reconcile.py::test_truncation_targets"),
    "6.5 cut on fetch, again and again": _shown("test_follower.py::test_successive_divergences"),
    "6.5 the leader answers nothing but errors: not fetched before it is reconciled": _shown(
        "test_follower.py::test_errors_while_reconciling"
    ),
    "6.5 one fetcher a leader and number": _shown(
        "test_fetcher.py::test_6_5_every_partition_on_thread_hash_mod_n",
        "test_isr_profiles.py::test_6_5_resizing_keeps_states_and_failures",
    ),
    "6.5 resized 10, 50, 10": _shown("test_isr_profiles.py::test_6_5_resizing_keeps_states_and_failures"),
    "6.5 a failed partition removed or added again": _shown("test_isr_profiles.py::test_gauges"),
    "6.5 a thread that dies": _DIFFERENCES + "gauge of dead fetcher threads",
}

_EPOCHS_END_TO_END = {
    "6.6 OffsetsForLeaderEpoch: leader, not leader, unknown": _shown(
        "test_rows.py::test_6_6_epochs_of_a_sole_replica_that_bounces"
    ),
    "6.6 a sole replica bounced twice": _shown(
        "test_rows.py::test_6_6_epochs_of_a_sole_replica_that_bounces"
    ),
    "6.6 follower bounced, then the leader: who has which epoch": _shown(
        "test_rows.py::test_6_6_an_epoch_is_with_a_follower_once_it_has_records"
    ),
    "6.6 the leader lost the second half of its log": _shown(
        "test_rows.py::test_6_6_a_leader_that_lost_half_of_its_log"
    ),
    "6.6 bounced in turn, five times": _shown("test_rows.py::test_6_6_bounced_in_turn"),
    "6.6 each alone in turn, unclean": _shown("test_rows.py::test_6_6_each_alone_in_turn"),
}

_CONTROLLER = {
    "6.7 offline election": _shown("controller/test_election.py::test_offline"),
    "6.7 reassigned leader": _shown("controller/test_election.py::test_reassigned"),
    "6.7 preferred leader": _shown("controller/test_election.py::test_preferred"),
    "6.7 leader at a controlled shutdown": _shown("controller/test_election.py::test_shutdown"),
    "6.7 a new partition with no live replica": _shown(
        "controller/test_topics.py::test_new_topic_without_a_live_replica_waits_for_one"
    ),
    "6.7 a conflict at the first write": _DIFFERENCES
    + "the first state of a partition that another process wrote meanwhile",
    "6.7 preferred and offline elections: LE +1, all recipients": _shown(
        "controller/test_elect_leaders.py::test_the_preferred_replica_leads_again",
        "controller/test_brokers.py::test_leader_dies_under_a_surviving_controller",
    ),
    "6.7 a state that cannot be read": _shown(
        "controller/test_elect_leaders.py::test_unknown_unreadable_and_vanishing_partitions",
        "controller/test_controller.py::test_lost_replies_of_reads_only_cost_time",
    ),
    "6.7 a state of a higher controller epoch": _shown(
        "controller/test_failover.py::test_a_state_of_a_later_controller_ends_the_term"
    ),
    "6.7 illegal transitions": _DIFFERENCES + "state machines of partitions and replicas",
    "6.7 a replica in the ISR goes offline": _shown(
        "controller/test_controlled_shutdown.py::test_the_departing_broker_stops_following_and_learns_what_it_lost",
        "controller/test_brokers.py::test_follower_dies",
    ),
    "6.7 reassign_to: full list, adding, removing": _shown(
        "controller/test_reassignment.py::TestReassignTo::test_target_first_then_the_rest"
    ),
    "6.7 reassign_to twice, back, another order": _shown(
        "controller/test_reassignment.py::TestReassignTo::test_the_latest_target_counts",
        "controller/test_reassignment.py::TestReassignTo::test_back_to_the_original",
        "controller/test_reassignment.py::TestReassignTo::test_another_order_is_no_reassignment",
    ),
    "6.7 the target of an assignment": _shown(
        "controller/test_reassignment.py::TestReassignTo::test_target_of_a_full_list"
    ),
    "6.7 the controller epoch after a restart of the cluster": _shown(
        "controller/test_failover.py::test_controller_epoch_after_a_restart_of_the_cluster"
    ),
    "6.7 a new controller after a bounce or the node's deletion": _shown(
        "controller/test_controller.py::test_exactly_one_controller_whose_epoch_only_grows",
        "controller/test_controller.py::test_s50_manual_deletion_makes_the_old_one_resign_first",
    ),
    "6.7 a topic with a dead replica": _shown(
        "controller/test_topics.py::test_new_topic_with_a_dead_replica_starts_without_it"
    ),
    "6.7 reassign {c} to {o}: LE": _DIFFERENCES + "LE +3 ({c} to {o})",
    "6.7 reassign to a dead broker": _shown("test_reassignment_faults.py::test_r12_a_target_is_dead"),
    "6.7 preferred election, also with the preferred one offline": _shown(
        "controller/test_elect_leaders.py::test_a_tool_asks_in_the_store",
        "controller/test_elect_leaders.py::test_the_node_goes_also_when_nobody_can_be_elected",
    ),
    "6.7 automatic rebalancing": _shown(
        "controller/test_elect_leaders.py::test_leaderships_go_home_by_themselves"
    ),
    "6.7 the sole ISR goes down": _shown(
        "controller/test_unclean_elections.py::test_s8_unclean_election_off",
        "controller/test_brokers.py::test_s52_unclean_election_where_it_is_allowed",
    ),
    "6.7 reassign to the same set in another order": _shown(
        "controller/test_reassigning.py::TestWholeCourse::test_another_order"
    ),
    "6.7 controlled shutdown of three brokers in turn; a stale broker epoch": _shown(
        "controller/test_controlled_shutdown.py::test_s53_controlled_shutdown_of_every_replica",
        "test_orderly_end.py::test_s53_every_node_in_turn",
        "controller/test_controlled_shutdown.py::test_an_incarnation_that_is_not_ours_is_refused",
    ),
    "6.7 a zombie resigns on create, delete, preferred, reassign": _shown(
        "controller/test_failover.py::test_a_zombie_resigns_whatever_it_is_asked_for"
    ),
    "6.7 the queue is cleared at expiry, clients are answered": _shown(
        "controller/test_controller.py::test_waiting_clients_are_told_when_the_session_is_lost"
    ),
    "6.7 AlterPartition, judged": _shown(
        "controller/test_alter_partition.py::test_refusals_and_repeats_write_nothing",
        "controller/test_unclean_elections.py::test_recovery_goes_one_way",
    ),
    "6.7 deletion with all brokers up": _shown(
        "controller/test_topic_deletion.py::test_deletion_with_all_up"
    ),
    "6.7 deletion with a broker that is down and returns": _shown(
        "controller/test_topic_deletion.py::test_s65_a_dead_replica_is_waited_for_and_named"
    ),
    "6.7 a broker fails while it deletes": _shown(
        "controller/test_topic_deletion.py::test_a_broker_that_bounces_while_it_deletes_is_asked_again",
        "controller/test_topic_deletion.py::test_a_broker_that_cannot_delete_is_asked_again_when_it_returns",
    ),
    "6.7 leader and controller killed at once: LE": _DIFFERENCES + "controller and leader die together",
    "6.7 a sole replica killed: always two epochs": _shown(
        "controller/test_failover.py::test_a_sole_replica_that_is_the_controller_too",
        "controller/test_brokers.py::test_sole_replica_goes_and_comes",
    ),
    "6.7 LeaderAndIsr of a stale controller, of a stale and of a newer broker epoch": _shown(
        "test_orders.py::test_old_controllers_and_former_lives",
        "test_node.py::test_the_controllers_word_is_held_until_we_know_who_we_are",
    ),
    "6.7 conditional update: same data, wrong version; other data": _shown(
        "controller/test_proposals.py::test_s26_lost_reply_of_an_isr_write",
        "controller/test_proposals.py::test_a_proposal_over_a_node_that_somebody_else_wrote",
    ),
}

_UNCLEAN = {
    "6.8 unclean enabled: the second message only on the dead leader": _shown(
        "test_unclean.py::test_enabled_the_second_is_lost_and_the_third_is_readable"
    ),
    "6.8 unclean disabled; the topic's word beats the broker's": _shown(
        "test_unclean.py::test_disabled_nobody_leads_until_it_returns"
    ),
    "6.8 unclean enabled while brokers run": _shown(
        "controller/test_unclean_elections.py::test_switched_on_for_all_brokers_it_elects_where_nobody_leads",
        "controller/test_brokers.py::test_unclean_election_that_is_allowed_later_elects_at_once",
    ),
}

_WAITING = {
    "6.8 checked before and after it is satisfied: counted once": _shown(
        "test_delayed.py::test_completed_by_its_key_once"
    ),
    "6.8 three operations of two keys: delayed, watched, purged": _shown(
        "test_delayed.py::test_carcasses_are_counted_until_purged"
    ),
    "6.8 expiry: by the timer, not before the time, counted": _shown(
        "test_delayed.py::test_expiry_in_order_and_on_time",
        "test_delayed.py::test_s40_timer_key_and_force_together_answer_once",
    ),
    "6.8 cancel_for_key": _DIFFERENCES + "cancelling all waiting requests of a key",
    "6.8 somebody else holds the operation's lock; many threads": _DIFFERENCES
    + "a waiting request that another thread looks at",
}

_ISR_CHANNEL = {
    "6.8 a second proposal of a partition before the answer": _DIFFERENCES
    + "a second ISR proposal of a partition, while the first is in progress",
    "6.8 ten partitions, the first in flight; the answer leaves it out": _shown(
        "test_isr_channel.py::test_6_8_ten_partitions_and_an_answer_that_leaves_one_out"
    ),
    "6.8 asked again from inside the answer": _shown(
        "test_isr_channel.py::test_resending_from_the_answer_is_accepted"
    ),
    "6.8 refused as a whole: kept, asked again after 50 ms": _shown(
        "test_isr_channel.py::test_6_8_refused_as_a_whole",
        "test_isr_channel.py::test_no_answer_worth_the_name_is_asked_again_after_a_pause",
    ),
    "6.8 an error of one partition is handed over, the entry is free": _shown(
        "test_isr_channel.py::test_resending_from_the_answer_is_accepted",
        "test_membership.py::test_a_definite_refusal_leaves_the_larger_isr",
    ),
}

_TOPICS = {
    "6.8 delete: all up; made again, it is empty": _shown(
        "test_topics.py::test_a_deleted_topic_is_gone_from_every_disk_and_can_be_made_again",
        "controller/test_topic_deletion.py::test_deletion_with_all_up",
    ),
    "6.8 delete: a follower is down": _shown(
        "test_topics.py::test_s65_a_follower_that_is_down_holds_the_deletion_up"
    ),
    "6.8 delete: the controller fails": _shown(
        "controller/test_topic_deletion.py::test_s66_the_controller_dies_at_every_step_of_a_deletion"
    ),
    "6.8 delete while reassigning": _shown(
        "controller/test_topic_deletion.py::test_s67_a_reassignment_ends_first"
    ),
    "6.8 partitions added meanwhile": _shown(
        "controller/test_topic_deletion.py::test_partitions_that_are_added_meanwhile_are_taken_back"
    ),
    "6.8 delete what does not exist, or is not allowed to go": _shown(
        "controller/test_topic_deletion.py::test_what_is_unknown_or_switched_off_only_loses_its_request"
    ),
    "6.8 add partitions: replication factor, first id, shrinking": _shown(
        "controller/test_topic_changes.py::test_additions_that_are_refused"
    ),
    "6.8 assignment: ten partitions on five brokers": _shown(
        "controller/test_assignment.py::test_spread_worked_example"
    ),
    "6.8 assignment with racks": _shown(
        "controller/test_assignment.py::test_racks_worked_example",
        "controller/test_assignment.py::test_every_partition_covers_as_many_racks_as_it_can",
        "controller/test_assignment.py::test_spread_is_valid_and_even",
    ),
    "6.8 assignment: too few brokers, no partitions": _shown(
        "controller/test_assignment.py::test_counts_that_cannot_be"
    ),
    "6.8 reassign with the leader in the target": _shown(
        "controller/test_reassigning.py::TestWholeCourse::test_more_replicas",
        "controller/test_reassignment.py::TestTheEnd::test_a_leader_in_the_target_stays",
    ),
    "6.8 reassign with the leader not in the target, and disjoint": _shown(
        "controller/test_reassigning.py::TestWholeCourse::test_begin_wait_end_leave",
        "controller/test_reassignment.py::TestTheEnd::test_leadership_moves_to_the_target_in_the_targets_order",
    ),
    "6.8 reassign a partition that does not exist": _shown(
        "controller/test_reassigning.py::TestRequestNode::test_entries_that_make_no_sense_go_at_once"
    ),
    "6.8 reassigned already when the controller starts": _shown(
        "controller/test_reassigning.py::TestRequestNode::test_one_that_is_done_when_a_controller_starts"
    ),
}

ROWS: dict[str, str] = {
    **_EPOCH_CACHE,
    **_PARTITION,
    **_REPLICA,
    **_MANAGER,
    **_FETCHERS,
    **_EPOCHS_END_TO_END,
    **_CONTROLLER,
    **_UNCLEAN,
    **_WAITING,
    **_ISR_CHANNEL,
    **_TOPICS,
}
