"""malloc_debug's look for unreachable blocks on Linux for arm64, in programs of that and of 32-bit Arm, with the agent alone: it is made by
a copy of the process, which QEMU's user mode has none of."""

import os, re, tempfile
from machine import FOLDER, GRAPNEL, main, run

# The machine is slow.
SECONDS = 600


def looked(options, program, *arguments):
    """Runs a program with these options: what it printed, and the messages."""
    with tempfile.TemporaryDirectory() as directory:
        agent = run(GRAPNEL, "agent-path", env=os.environ | {"XDG_CACHE_HOME": directory})[0].strip()
        environment = os.environ | {"LD_PRELOAD": agent, "LIBC_DEBUG_MALLOC_OPTIONS": options}
        arguments = [argument.replace("DIR", directory) for argument in arguments]
        return run(FOLDER / program, *arguments, env=environment, cwd=directory, timeout=SECONDS)


def what_nothing_leads_to():
    out, said = looked("bt bt_full verbose check_unreachable_on_signal", "malloc_wrong", "unreachable", "100", "DIR/asked")
    lines = [line.removeprefix("malloc_debug: ") for line in said.splitlines()]
    assert any(line.startswith("Run: 'kill -48 ") for line in lines), said
    text = [line for line in lines[lines.index("Unreachable memory"):] if " 0x" not in line]
    assert text[1] == f"  {2 * (8002 + 8003) + 8004 + 8005} bytes in 6 unreachable allocations", said
    sites = [line for line in text if " bytes unreachable at " in line]
    assert len(sites) == 2 and sites[0].startswith("  8004 bytes ") and sites[1].startswith("  8002 bytes "), said
    for right in ("   referencing 8005 unreachable bytes in 1 allocation", "   and 8002 similar unreachable bytes in 1 allocation",
                  "   referencing 16006 unreachable bytes in 2 allocations"):
        assert right in text, f"{right}: {said}"
    assert len(re.findall(r"\(lose\+", said)) == 2, said
    # The program never sees the copy of itself that looked.
    assert out.splitlines()[1:] == ["-1"], out


def a_list_that_grew_at_its_front():
    out, said = looked("check_unreachable_on_signal", "debug_moments", "list", "DIR")
    assert out == "lost\ngoes on\n", out + said
    assert re.search(r"  \d+ bytes in 300000 unreachable allocations\n", said), said
    assert re.search(r"   referencing \d+ unreachable bytes in 299999 allocations\n", said), said


def each_request_counts():
    out, said = looked("check_unreachable_on_signal", "debug_moments", "asked", "DIR")
    assert out == "goes on\n", out + said
    assert said.count("Starting to check") == 3 and said.count("1 threads did not stand still") == 2, said


def what_an_alternate_stack_holds():
    out, said = looked("check_unreachable_on_signal", "debug_moments", "alternate", "DIR")
    assert out == "goes on\n" and "No unreachable memory." in said, out + said


main(what_nothing_leads_to, a_list_that_grew_at_its_front, each_request_counts, what_an_alternate_stack_holds)
