"""C12, broken by hand once: fenced writes, and controllers whose news never goes back."""

from __future__ import annotations

import pytest

from logstore.testing.controller_checks import NewsChecker, StoreChecker
from logstore.testing.stored import Violation


def test_c12_writes_are_fenced_and_epochs_rise() -> None:
    store = StoreChecker()
    store.written(["/brokers/ids/1"], is_fenced=False, controller_epoch=3)
    store.written(["/brokers/topics/t"], is_fenced=True, controller_epoch=3)
    with pytest.raises(Violation, match=r"C12.*without a check of the controller epoch"):
        store.written(["/config/topics/t"], is_fenced=False, controller_epoch=3)
    with pytest.raises(Violation, match=r"C12.*from 3 to 2"):
        store.written([], is_fenced=True, controller_epoch=2)


def test_c12_a_process_obeys_no_earlier_controller() -> None:
    news = NewsChecker()
    news.obeys((1, 1), 3)
    news.obeys((2, 1), 2)
    news.obeys((1, 2), 2)  # another life has heard of none yet
    with pytest.raises(Violation, match=r"C12: node 1 obeys controller 2 after 3"):
        news.obeys((1, 1), 2)


def test_c12_who_has_gone_does_not_live_again_under_its_old_epoch() -> None:
    news = NewsChecker()
    news.obeys((1, 1), 3)
    news.heard((1, 1), {1: 10, 2: 20})
    news.heard((1, 1), {1: 10})
    news.heard((1, 1), {1: 10, 2: 21})
    with pytest.raises(Violation, match=r"C12.*broker 2 is alive with epoch 20 after"):
        news.heard((1, 1), {1: 10, 2: 20})


def test_c12_a_live_broker_that_an_old_word_hid_comes_back_as_it_was() -> None:
    news = NewsChecker()
    news.obeys((1, 1), 3)
    news.heard((1, 1), {1: 10, 2: 20})
    news.heard((1, 1), {1: 10})
    with pytest.raises(Violation, match=r"C12.*broker 2 is alive with epoch 20"):
        news.heard((1, 1), {1: 10, 2: 20})


def test_c12_another_controller_may_begin_with_an_older_list() -> None:
    """It read the store before the one that it replaced saw the last change."""
    news = NewsChecker()
    news.obeys((1, 1), 3)
    news.heard((1, 1), {2: 20})
    news.heard((1, 1), {2: 21})
    news.obeys((1, 1), 4)
    news.heard((1, 1), {2: 20})
    news.heard((1, 1), {2: 21})
