import random
import time

import schedule
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

scheduler = BackgroundScheduler()
scheduler.add_job(sync, "cron", minute=0)  # found: same-second
scheduler.add_job(sync, CronTrigger(minute=0))  # found: same-second
schedule.every().day.at("00:00").do(sync)  # found: same-second


def every_minute():
    while True:
        sync()
        time.sleep(60 - time.time() % 60)  # found: same-second


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────

scheduler.add_job(sync, "cron", minute=0, jitter=60)
scheduler.add_job(sync, "interval", minutes=5)


def spread():
    while True:
        sync()
        time.sleep(random.uniform(50, 70))
