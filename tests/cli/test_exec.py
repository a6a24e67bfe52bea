"""`abate exec`: attempts and exit codes, signals, time, what the command reads, shared budgets, beats."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.cli import command_process, main
from abate.cli.exec import FINAL, OVERLOADED, exit_code_rule
from abate.errors import AttemptTimeout
from tests.cli.commands import GUARD, abate_command, line, lines, running, started, until

AT_ONCE = ("--base", "0", "--cap", "0")


def script(text: str) -> tuple[str, str, str, str]:
    """A command that a shell reads."""
    return ("--", "sh", "-c", text)


# -- attempts and exit codes


def test_a_command_that_succeeds_runs_once_and_its_output_is_untouched():
    """What it writes passes through byte by byte, and nothing is added."""
    done = abate_command("exec", *script(r"printf 'a\000\377b'; printf 'c\033d' >&2"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\x00\xffb", b"c\x1bd")


def test_a_command_is_run_again_until_it_succeeds():
    """It is told the number of its attempt, and what was retried is said on stderr, marked as ours."""
    done = abate_command("exec", *AT_ONCE, "--name", "job", *script("echo $ABATE_ATTEMPT; test $ABATE_ATTEMPT = 3"))
    assert (done.returncode, done.stdout.split()) == (0, [b"1", b"2", b"3"])
    said = done.stderr.decode().splitlines()
    assert said[0] == "abate: job: exit code 1 on attempt 1 of 3, next in 0 s"
    assert said[-1] == "abate: job: succeeded on attempt 3 after 0 s of waiting"
    assert all(text.startswith("abate: ") for text in said)


def test_the_last_exit_code_is_the_commands_own():
    """When all attempts have failed, we end as the last one did."""
    done = abate_command("exec", "--max-attempts", 4, *AT_ONCE, *script("echo; exit $((10 + ABATE_ATTEMPT))"))
    assert (done.returncode, done.stdout.count(b"\n")) == (14, 4)
    assert b"gave up after 4 attempts" in done.stderr


def test_quiet_says_nothing_of_retries():
    """With --quiet, stderr is the command's alone."""
    done = abate_command("exec", "--quiet", *AT_ONCE, *script("echo hm >&2; exit 1"))
    assert (done.returncode, done.stderr) == (1, b"hm\n" * 3)


@pytest.mark.parametrize("code", [64, 126, 127, 130, 143])
def test_what_would_end_the_same_way_is_not_retried(code, capfd):
    """A wrong use, a missing program and a wanted end are final."""
    assert main(["exec", *AT_ONCE, *script(f"echo; exit {code}")]) == code
    out, err = capfd.readouterr()
    assert (out, "which is not retried" in err) == ("\n", True)


@pytest.mark.parametrize(("number", "attempts"), [("KILL", 3), ("SEGV", 3), ("TERM", 1), ("INT", 1)])
def test_a_signal_that_kills_the_command_is_128_and_its_number(number, attempts):
    """A crash is retried; SIGTERM and SIGINT mean that it was told to end."""
    done = abate_command("exec", *AT_ONCE, *script(f"echo; kill -{number} $$"))
    assert done.returncode == 128 + signal.Signals[f"SIG{number}"]
    assert done.stdout == b"\n" * attempts
    assert f"killed by SIG{number}" in done.stderr.decode()


def test_a_command_that_is_not_there_is_127_and_one_that_cannot_be_run_126(tmp_path):
    """As in a shell; both at once, without a retry."""
    missing = abate_command("exec", "--", tmp_path / "nothing")
    assert (missing.returncode, missing.stderr) == (127, b"abate: nothing: no such command, which is not retried\n")
    assert abate_command("exec", "--", "").returncode == 127
    (tmp_path / "text").write_text("no program")
    text = abate_command("exec", "--", tmp_path / "text")
    assert (text.returncode, b"can't be run" in text.stderr) == (126, True)


def test_on_restricts_what_is_retried_to_these_codes():
    """--on 75,3 retries 75 and 3, and nothing else."""
    for code, attempts in ((75, 2), (3, 2), (1, 1)):
        done = abate_command("exec", "--max-attempts", 2, "--on", "75,3", *AT_ONCE, *script(f"echo; exit {code}"))
        assert (done.returncode, done.stdout) == (code, b"\n" * attempts)


@given(code=st.integers(1, 255), only=st.none() | st.frozensets(st.integers(1, 255), min_size=1))
def test_every_exit_code_has_a_ruling(code, only):
    """Without --on all but the final ones are retried, with it those alone; 69 and 75 are an overload."""
    ruling = exit_code_rule(only)(command_process.CommandFailed.ended(code))
    assert (ruling is not None) == (code not in FINAL if only is None else code in only)
    if ruling is not None:
        assert ruling.overloaded == (code in OVERLOADED)


def test_a_machine_out_of_processes_is_worth_another_attempt():
    """A child that can't be started for want of memory or processes is an overload; a missing one is final."""
    assert exit_code_rule(frozenset({3}))(
        command_process.CommandFailed.not_started(BlockingIOError(11, "no process"))
    ).overloaded
    assert exit_code_rule(None)(command_process.CommandFailed.not_started(FileNotFoundError(2, "no file"))) is None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--max-attempts", "0"], "not 0"),
        (["--max-attempts", "x"], "'x'"),
        (["--timeout", "soon"], "'soon'"),
        (["--timeout", "-1"], "not -1.0"),
        (["--base", "5", "--cap", "1"], "not 1.0"),
        (["--on", "0"], "'0'"),
        (["--on", "75,256"], "'75,256'"),
        (["--every", "0"], "not 0.0"),
        (["--every", "1w"], "'1w'"),
        (["--store", "sqlite:///x.db"], "--budget"),
        (["--budget", "b", "--ratio", "-1"], "not -1.0"),
        (["--budget", ""], "--budget"),
        (["--budget", "x" * 1000], "not of 1000"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_runs(words, named, tmp_path, capsys):
    """Bad values end with exit code 2, before the first attempt."""
    with pytest.raises(SystemExit, match="2"):
        main(["exec", *words, "--", "touch", str(tmp_path / "ran")])
    assert named in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "ran").exists()


def test_without_a_command_it_asks_for_one():
    """`abate exec` alone is a wrong use."""
    done = abate_command("exec", "--max-attempts", 2)
    assert (done.returncode, b"no command: write it after --" in done.stderr) == (2, True)


def test_the_words_of_the_command_are_its_own():
    """Options behind the command, and a second --, are passed on."""
    done = abate_command("exec", "--", "echo", "--max-attempts", "7", "--", "-x")
    assert done.stdout == b"--max-attempts 7 -- -x\n"
    assert abate_command("exec", "printf", "%s", "-x").stdout == b"-x"


# -- time


def test_a_command_whose_time_is_up_is_ended_with_124():
    """--timeout ends the attempt, and there is no other."""
    done = abate_command("exec", "--timeout", "0.3", *script("echo; exec sleep 60"))
    assert (done.returncode, done.stdout) == (124, b"\n")
    assert b"deadline" in done.stderr


def test_an_attempt_that_takes_too_long_is_followed_by_another():
    """--attempt-timeout bounds one attempt, and is retried, whatever --on says."""
    words = ("--max-attempts", 2, "--attempt-timeout", "0.2", "--on", "75", *AT_ONCE)
    done = abate_command("exec", *words, *script("echo; exec sleep 60"))
    assert (done.returncode, done.stdout) == (124, b"\n\n")


def test_no_attempt_begins_after_the_deadline():
    """A wait that would end after the timeout is not begun, and the exit code is the command's."""
    done = abate_command("exec", "--timeout", "20", "--base", "1d", "--cap", "1d", *script("exit 7"))
    assert (done.returncode, b": deadline (exit code 7)" in done.stderr) == (7, True)


def test_the_command_is_told_how_long_it_has():
    """ABATE_DEADLINE is milliseconds, and is there only where there is a deadline."""
    told = abate_command("exec", "--timeout", "1h", *script("echo $ABATE_DEADLINE"))
    assert 3_500_000 < int(told.stdout) <= 3_600_000
    assert abate_command("exec", *script("echo ${ABATE_DEADLINE-none}")).stdout == b"none\n"


def test_a_deadline_from_outside_can_only_shorten():
    """An `abate exec` within another keeps to the outer one's time, and tells the command so; garbage is ignored."""
    for left, least, most in (("5000", 1, 5000), ("99999999", 3_000_000, 3_600_000), ("-1", 3_000_000, 3_600_000)):
        told = abate_command(
            "exec", "--timeout", "1h", *script("echo $ABATE_DEADLINE"), env={**os.environ, "ABATE_DEADLINE": left}
        )
        assert least <= int(told.stdout) <= most
    inner = line("exec", "--timeout", "1h", "--", "sleep", "60")
    assert abate_command("exec", "--timeout", "0.5", "--", *inner).returncode == 124


def test_a_command_that_is_stopped_still_hears_of_its_end():
    """SIGTERM to a stopped process waits until it goes on: it is made to."""
    with started("exec", *script("echo $$; kill -STOP $$; sleep 60")) as process:
        stopped = Path("/proc", process.stdout.readline().decode().strip(), "status")
        until(lambda: "State:\tT" in stopped.read_text())
        process.terminate()
        assert process.wait(GUARD) == 128 + signal.SIGTERM


def test_streams_that_are_closed_stay_out_of_the_way():
    """Without stdin, stdout or stderr nothing hangs, and nothing else is written in their place."""
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        shell = f"{' '.join(line('exec', *AT_ONCE))} -- sh -c 'exit 3' {closed}"
        done = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=GUARD)
        assert (done.returncode, done.stdout) == (3, b"")


def test_as_the_first_process_of_a_container_it_reaps_what_is_left_behind():
    """Orphans of each run come to process 1, and would stay there as zombies for ever."""
    inside = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of processes here")
    orphan = "(true &) ; sleep 0.1; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l; exit 3"
    command = [*inside, *line("exec", *AT_ONCE, *script(orphan))]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=GUARD)
    assert (done.returncode, done.stdout.split()) == (3, [b"1", b"1", b"1"])


def test_what_the_command_has_started_ends_with_it(tmp_path):
    """At a timeout the whole process group is ended."""
    done = abate_command("exec", "--timeout", "0.5", *script(f"sleep 60 & echo $! > {tmp_path}/pid; wait"))
    assert done.returncode == 124
    assert not running(int((tmp_path / "pid").read_text()))


def test_a_command_that_does_not_end_when_asked_is_killed(monkeypatch, tmp_path):
    """SIGTERM first, SIGKILL after the grace, for all of the group."""
    monkeypatch.setattr(command_process, "GRACE", 0.2)
    stubborn = f"trap 'echo asked >> {tmp_path}/log' TERM; sh -c 'trap \"\" TERM; sleep 60' & echo $! > {tmp_path}/pid"
    code = main(["exec", "--timeout", "0.5", *script(f"{stubborn}; while :; do wait; done")])
    assert (code, lines(tmp_path / "log")) == (124, ["asked"])
    until(lambda: not running(int((tmp_path / "pid").read_text())))


def test_the_group_may_clear_up_after_its_leader_has_gone(monkeypatch, tmp_path):
    """Processes of the group that are still ending get the grace."""
    monkeypatch.setattr(command_process, "GRACE", 10.0)
    busy = (
        f"trap 'sleep 0.3; echo clean > {tmp_path}/log; exit' TERM; echo > {tmp_path}/up; while :; do sleep 0.1; done"
    )
    with pytest.raises(AttemptTimeout), command_process.SignalClock() as signals:
        leader = f"({busy}) & while test ! -e {tmp_path}/up; do sleep 0.01; done; exec sleep 60"
        command_process.run(["sh", "-c", leader], os.environ, signals, timeout=1.0)
    assert lines(tmp_path / "log") == ["clean"]


# -- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_ends_the_retrying(number, tmp_path):
    """The command decides what to end with; there is no other attempt."""
    name = number.name.removeprefix("SIG")
    text = f"trap 'echo {name} >> {tmp_path}/log; exit 9' {name}; echo up; while :; do sleep 0.05; done"
    with started("exec", *AT_ONCE, *script(text)) as process:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(GUARD) == 9
        assert process.stdout.read() == b""
    assert lines(tmp_path / "log") == [name]


def test_a_command_that_ends_well_in_spite_of_a_signal_has_succeeded():
    """Exit code 0 after SIGTERM is 0."""
    with started("exec", *script("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")) as process:
        process.stdout.readline()
        process.terminate()
        assert process.wait(GUARD) == 0


def test_a_signal_ends_the_wait_for_the_next_attempt():
    """Between two attempts there is no process to pass it on to: the exit code is 128 and its number."""
    with started("exec", "--base", "1d", "--cap", "1d", *script("exit 1")) as process:
        process.stderr.readline()
        process.terminate()
        assert process.wait(GUARD) == 128 + signal.SIGTERM
        assert b"ended by SIGTERM" in process.stderr.read()


def test_descriptors_and_waits_may_be_as_large_as_they_like():
    """It waits for a descriptor beyond 1023, and for longer than a month."""
    read, write = os.pipe()
    high = fcntl.fcntl(read, fcntl.F_DUPFD, 1_500)
    try:
        with command_process.SignalClock() as signals:
            assert not signals.pause(0.0, high)
            os.write(write, b"here")
            assert signals.pause(60 * 86_400.0, high)
    finally:
        for descriptor in (read, write, high):
            os.close(descriptor)


def test_what_was_ignored_stays_ignored():
    """Under nohup, SIGHUP ends neither us nor the command."""
    shell = f"trap '' HUP; exec {' '.join(line('exec'))} -- sh -c 'kill -HUP $PPID $$; echo alive'"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, stdin=subprocess.DEVNULL, timeout=GUARD)
    assert (done.returncode, done.stdout) == (0, b"alive\n")


def test_on_a_terminal_ctrl_c_comes_once_and_ends_the_retrying(tmp_path):
    """The command can read from the terminal; Ctrl-C reaches it there, and is not sent a second time."""
    (tmp_path / "typed.py").write_text(TYPED)
    command = line("exec", *AT_ONCE, "--", sys.executable, tmp_path / "typed.py", tmp_path / "log")
    spawn = f"import pty, os; os._exit(os.waitstatus_to_exitcode(pty.spawn({command!r})))"
    with subprocess.Popen([sys.executable, "-c", spawn], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        type_in(process, b"hello\n")
        until(lambda: len(lines(tmp_path / "log")) == 2)
        ours = int(lines(tmp_path / "log")[1])
        os.kill(ours, signal.SIGSTOP)  # so that a second signal would come after the first was handled
        try:
            type_in(process, b"\x03")
            until(lambda: len(lines(tmp_path / "log")) == 3)
        finally:
            os.kill(ours, signal.SIGCONT)
        time.sleep(0.3)
        type_in(process, b"bye\n")
        assert process.wait(GUARD) == 7
    assert lines(tmp_path / "log") == ["hello", str(ours), "SIGINT", "bye"]


def type_in(process, keys: bytes) -> None:
    """Press these keys on the terminal of a process."""
    process.stdin.write(keys)
    process.stdin.flush()


TYPED = """
import os, signal, sys

def note(word):
    with open(sys.argv[1], "a") as file:
        print(word, file=file)

signal.signal(signal.SIGINT, lambda number, frame: note("SIGINT"))
note(input())
note(os.getppid())
note(input())
sys.exit(7)
"""


# -- stdin


def test_what_comes_through_a_pipe_is_read_by_every_attempt():
    """A pipe is read once and repeated."""
    done = abate_command("exec", *AT_ONCE, *script("cat; exit 1"), stdin=b"a\nb\n")
    assert done.stdout == b"a\nb\n" * 3


def test_a_file_is_wound_back_to_where_it_stood(tmp_path):
    """A file is read by every attempt from the same place, however long it is."""
    (tmp_path / "input").write_bytes(b"skipped\nread\n")
    with open(tmp_path / "input", "rb", buffering=0) as file:
        file.seek(8)
        done = abate_command("exec", *AT_ONCE, *script("cat; exit 1"), stdin=file.fileno())
    assert done.stdout == b"read\n" * 3


def test_a_pipe_with_more_than_can_be_kept_is_refused_before_the_first_attempt(monkeypatch, capfd, tmp_path):
    """The error says how much it may be; where nothing is repeated it passes through."""
    monkeypatch.setattr("abate.cli.replayed_stdin.MAX_SIZE", 1 << 20)
    for words, code in (((), 125), (("--max-attempts", "1"), 0)):
        with piped(b"x" * ((1 << 20) + 1)):
            assert main(["exec", *words, *script(f"wc -c; touch {tmp_path}/ran")]) == code
        assert (tmp_path / "ran").exists() == (code == 0)
    out, err = capfd.readouterr()
    assert (out.split(), "1 MB" in err) == (["1048577"], True)


def test_a_pipe_that_does_not_end_is_given_up_at_the_timeout():
    """Reading what is to be repeated is bounded by --timeout, and ended by a signal."""
    read, write = os.pipe()
    try:
        done = abate_command("exec", "--timeout", "0.2", "--", "true", stdin=read)
        assert (done.returncode, b"stdin did not end" in done.stderr) == (124, True)
        with started("exec", "--", "true", stdin=read) as process:
            os.write(write, b"x")
            until(lambda: empty(read))
            process.terminate()
            assert process.wait(GUARD) == 128 + signal.SIGTERM
    finally:
        os.close(read)
        os.close(write)


def empty(pipe: int) -> bool:
    """Return whether the content of the pipe has been read."""
    import fcntl
    import termios

    return fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4) == b"\0" * 4


class piped:
    """Make a pipe with these bytes the stdin of this process."""

    def __init__(self, data: bytes) -> None:
        self.writer = subprocess.Popen([sys.executable, "-c", f"print('x' * {len(data)}, end='')"], stdout=-1)

    def __enter__(self) -> None:
        self.before = os.dup(0)
        os.dup2(self.writer.stdout.fileno(), 0)

    def __exit__(self, *_: object) -> None:
        os.dup2(self.before, 0)
        os.close(self.before)
        self.writer.stdout.close()
        self.writer.kill()
        self.writer.wait()


# -- beats


def test_every_runs_again_and_again_until_a_signal_ends_it():
    """SIGTERM is a clean end, with exit code 0."""
    with started("exec", "--every", "0.2s", "--", "echo", "beat") as process:
        assert [process.stdout.readline() for _ in range(3)] == [b"beat\n"] * 3
        process.terminate()
        assert process.wait(GUARD) == 0


def test_every_begins_at_this_hosts_own_offset():
    """The first beat is said, and stands where the host's and the command's name put it."""
    before = time.time()
    with started("exec", "--every", "1d", "--name", "backup", "--", "true") as process:
        said = process.stderr.readline().decode().split("first at ")[1].strip()
        process.terminate()
        assert process.wait(GUARD) == 0
    offset = abate.consistent_jitter(f"{socket.gethostname()}/backup", 86400.0)
    first = before + (offset - before) % 86400.0
    assert said in [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first + late)) for late in (0, 0.5)]


def test_a_run_that_takes_longer_than_a_beat_is_never_overtaken(tmp_path):
    """Never two at once: the beats between are left out, and that is said."""
    text = f"test -e {tmp_path}/lock && echo two; touch {tmp_path}/lock; sleep 0.5; rm {tmp_path}/lock; echo one"
    with started("exec", "--every", "0.2", *script(text)) as process:
        assert [process.stdout.readline() for _ in range(2)] == [b"one\n"] * 2
        process.terminate()
        assert process.wait(GUARD) == 0
        assert b"runs skipped, as the last one took too long" in process.stderr.read()


def test_every_goes_on_after_a_run_that_failed_but_not_without_a_command():
    """A run that is given up on is followed by the next beat; a command that isn't there is refused at once."""
    with started("exec", "--every", "0.2", "--max-attempts", "1", *script("echo; exit 3")) as process:
        assert process.stdout.readline() + process.stdout.readline() == b"\n\n"
    assert abate_command("exec", "--every", "1d", "--", "no-such-command").returncode == 127


# -- budgets


def test_commands_that_name_a_budget_share_it():
    """Two processes together make no more retries than the budget of three."""
    words = (
        "exec",
        "--max-attempts",
        20,
        *AT_ONCE,
        "--budget",
        "api",
        "--ratio",
        0,
        "--reserve",
        0.05,
        *script("echo; exit 5"),
    )
    with started(*words) as one, started(*words) as other:
        attempts = one.stdout.read() + other.stdout.read()
        assert (one.wait(GUARD), other.wait(GUARD)) == (5, 5)
        assert b": budget (exit code 5)" in one.stderr.read()
    assert attempts == b"\n" * (2 + 3)


def test_a_success_pays_for_the_retry_of_another_command(tmp_path):
    """With a ratio of 1 and no reserve, one success allows one retry; budgets of other names have their own."""
    words = (*AT_ONCE, "--ratio", 1, "--reserve", 0, "--store", f"sqlite:///{tmp_path}/budgets.db", "--budget")
    assert abate_command("exec", *words, "a", "--", "true").returncode == 0
    assert abate_command("exec", *words, "b", *script("echo; false")).stdout == b"\n"
    assert abate_command("exec", *words, "a", *script("echo; false")).stdout == b"\n\n"
    assert abate_command("exec", *words, "a", *script("echo; false")).stdout == b"\n"


def test_a_lone_command_may_retry_without_a_success_before():
    """The default terms have a reserve."""
    done = abate_command("exec", "--budget", "nightly", *AT_ONCE, *script("echo; false"))
    assert done.stdout == b"\n" * 3


def test_where_the_budgets_are_kept(tmp_path):
    """In the user's state directory; ABATE_STORE names another place, and --store comes before both."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "a b%20")}
    assert abate_command("exec", "--budget", "x", "--", "true", env=environment).stderr == b""
    assert (tmp_path / "a b%20" / "abate" / "budgets.db").exists()
    environment["ABATE_STORE"] = f"sqlite:///{tmp_path}/named.db"
    abate_command("exec", "--budget", "x", "--", "true", env=environment)
    assert (tmp_path / "named.db").exists()
    abate_command("exec", "--budget", "x", "--store", f"sqlite:///{tmp_path}/given.db", "--", "true", env=environment)
    assert (tmp_path / "given.db").exists()


def test_a_broken_store_never_stops_the_job(tmp_path):
    """Retries stay within a budget of the command's own then, and that is said once."""
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 100)
    words = ("--budget", "api", "--store", f"sqlite:///{tmp_path}/broken.db", "--ratio", 0, "--reserve", 0.05)
    done = abate_command("exec", "--max-attempts", 20, *AT_ONCE, *words, *script("echo; exit 5"))
    assert (done.returncode, done.stdout) == (5, b"\n" * (1 + 3))
    assert done.stderr.decode().count("is not shared for now") == 1
    assert abate_command("exec", *words, "--", "true").returncode == 0


def test_a_locked_store_never_stops_the_job(tmp_path):
    """A program that holds the file costs the job a short wait."""
    import sqlite3

    url = f"sqlite:///{tmp_path}/locked.db?timeout=0.1"
    abate_command("exec", "--budget", "api", "--store", url, "--", "true")
    holder = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        done = abate_command(
            "exec", *AT_ONCE, "--budget", "api", "--store", url, *script("echo; test $ABATE_ATTEMPT = 3")
        )
    finally:
        holder.close()
    assert (done.returncode, done.stdout) == (0, b"\n" * 3)
    assert b"is locked" in done.stderr


def test_a_retry_that_a_signal_prevents_is_not_paid_for(tmp_path):
    """A signal between two attempts gives the withdrawal back."""
    from abate.stores import open_store

    url = f"sqlite:///{tmp_path}/budgets.db"
    words = ("--base", "1d", "--cap", "1d", "--budget", "api", "--store", url, "--reserve", 1)
    with started("exec", *words, "--", "false") as process:
        process.stderr.readline()
        process.terminate()
        assert process.wait(GUARD) == 128 + signal.SIGTERM
    with open_store(url) as store:
        assert store.ledger("api", reserve=1, window=60).balance() == 60.0
