"""What a directory remembers, and how damage to it shows."""

from __future__ import annotations

import pytest

from msgstore import StoreError, StoreMismatch
from msgstore.directory import SETTINGS, Settings, find_segments, read_settings, write_settings
from msgstore.files import Files


def test_settings_are_remembered(tmp_path):
    assert read_settings(Files(), tmp_path) is None
    settings = Settings("lmdb", "v2", "checksum", "erlang", {"checksum": 4})
    write_settings(Files(), tmp_path, settings, sync=True)
    assert read_settings(Files(), tmp_path) == settings


def test_a_flip_anywhere_in_them_is_noticed(tmp_path):
    settings = Settings(records={"checksum": 4})
    write_settings(Files(), tmp_path, settings, sync=False)
    path = tmp_path / SETTINGS
    good = path.read_bytes()
    for at in range(len(good)):
        for bit in (1, 16, 128):
            path.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
            try:
                assert read_settings(Files(), tmp_path) == settings  # white space, or the case of a digit
            except StoreError as error:
                assert SETTINGS in str(error)  # noqa: PT017 - both outcomes are right


def test_segments_come_in_number_order_and_other_files_are_left_out(tmp_path):
    for name in ("10.sqs", "9.rdq", "0.sqs", "01.sqs", "x.sqs", "3.rdt", "msgstore.json", "5.sqs.tmp"):
        (tmp_path / name).write_bytes(b"")
    assert [found.path.name for found in find_segments(Files(), tmp_path, {".rdq", ".sqs"})] == ["0.sqs", "9.rdq", "10.sqs"]


def test_two_files_of_one_number_are_refused(tmp_path):
    (tmp_path / "1.rdq").write_bytes(b"")
    (tmp_path / "1.sqs").write_bytes(b"")
    with pytest.raises(StoreMismatch, match="same number"):
        find_segments(Files(), tmp_path, {".rdq", ".sqs"})
