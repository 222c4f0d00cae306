"""URLs as they are shown."""

import pytest

from dataporter.shards.storage.stored import Url

AZURE = "account.dfs.core.windows.net/corpus"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("ftp://user@example.com/corpus", "ftp://example.com/corpus"),
        ("ftp://user:password@example.com/corpus", "ftp://example.com/corpus"),
        ("https://token@example.com/a.tar", "https://example.com/a.tar"),
        (f"abfss://container@{AZURE}", f"abfss://container@{AZURE}"),
        (f"abfss://user:password@{AZURE}", f"abfss://{AZURE}"),
    ],
)
def test_only_the_name_of_a_container_is_shown_before_an_at_sign(given, shown):
    assert str(Url.of(given)) == shown
