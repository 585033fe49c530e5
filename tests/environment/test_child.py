import signal
import sys
import time

import pytest

from ringmpi.environment.child import alone, ask, ask_python


def python(program, seconds=20.0):
    return ask(sys.executable, "-c", program, seconds=seconds)


def test_what_a_program_writes_comes_back():
    assert python("print('one'); print('two')") == ("one\ntwo\n", "")


def test_a_program_that_is_not_there():
    assert ask("no-such-program-anywhere") == ("", "cannot be started: No such file or directory")


def test_a_failure_has_its_code_and_last_words():
    answer = python("import sys; print('so far'); sys.stderr.write('first\\nMPI_Init failed\\n------\\n'); sys.exit(7)")
    assert answer == ("so far\n", "exit code 7: MPI_Init failed")


def test_a_crash_is_named_by_its_signal():
    assert python("import os; os.kill(os.getpid(), 11)").failure == "killed by SIGSEGV"


def test_a_program_that_hangs_is_ended_with_its_children_and_what_it_wrote_is_kept(tmp_path):
    alive = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.05)"
    program = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "print('known', flush=True)\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    assert python(program, seconds=1.5) == ("known\n", "no answer for 1.5 s")
    assert time.monotonic() - start < 10
    time.sleep(0.3)
    alive.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not alive.exists()


def test_ctrl_c_ends_the_program_that_is_asked_too(tmp_path):
    """It is in a session of its own, so the terminal does not tell it."""
    alive = tmp_path / "alive"
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    with pytest.raises(KeyboardInterrupt):
        python(f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.05)")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    alive.unlink()
    time.sleep(0.3)
    assert not alive.exists()


def test_what_a_launcher_told_this_process_is_not_told_to_the_child():
    told = {
        "PMI_RANK": "0", "PMI_FD": "5", "PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "1",
        "HYDI_CONTROL_FD": "7",
    }  # fmt: skip
    kept = {"OMPI_MCA_pml": "ob1", "PMIX_MCA_gds": "hash", "OMP_NUM_THREADS": "3", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    left = alone(told | kept)
    assert left.pop("PYTHONPATH")
    assert left == kept


@pytest.mark.parametrize("variables", [{}, {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "77"}])
def test_mpi_is_asked_outside_of_this_process(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = "mpi4py.MPI" in sys.modules
    answer = ask_python("ringmpi.comm.about_mpi")
    assert '"mpi4py"' in answer.text or '"error"' in answer.text
    assert ("mpi4py.MPI" in sys.modules) == before
