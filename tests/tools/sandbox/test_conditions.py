"""A clock that is stopped or moved is so for all who read it, and C extensions survive it."""

import subprocess
import sys

READ = """
import calendar, datetime, time
from datetime import datetime as imported
from dataporter.tools.sandbox.conditions import Conditions, establish

began, monotonic = time.time(), time.monotonic()

def check():
    import pandas

    now = imported.now()
    told = [
        time.time(),
        time.time_ns() / 1e9,
        time.mktime(time.localtime()),
        calendar.timegm(time.gmtime()),
        time.mktime(time.strptime(time.ctime())),
        time.mktime(time.strptime(time.asctime())),
        float(time.strftime("%s")),
        now.timestamp(),
        imported.today().timestamp(),
        imported.now(datetime.timezone.utc).timestamp(),
        imported.utcnow().replace(tzinfo=datetime.timezone.utc).timestamp(),
        pandas.Timestamp.now().timestamp(),
    ]
    assert type(now) is datetime.datetime is imported
    assert datetime.date.today() - now.date() <= datetime.timedelta(days=1)
    assert max(told) - min(told) < 300, told
    assert abs(began - told[0]) > 10**7, told
    assert time.localtime(0) == time.localtime(0.5)

establish(Conditions(clock="long ago"))
check()
assert time.monotonic() - monotonic < 300
before = time.time()
time.sleep(0.01)
assert time.time() > before
establish(Conditions(clock="stopped"))
check()
assert time.perf_counter() == time.perf_counter()
assert time.time_ns() == time.time_ns()
"""


def test_all_that_tell_the_time_agree_on_another_one():
    subprocess.run([sys.executable, "-W", "ignore", "-c", READ], check=True)
