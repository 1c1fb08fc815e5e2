"""Make what carries vLLM 0.23.0 and this project to a GPU machine without a network.

``.gpu-pack/piece-N/part``: the packages, one archive cut into pieces. ``.gpu-pack/project``: the patch tool, the series
and these scripts, small, so that a change here needs no new pieces (``--project-only``). Everything in the pieces comes
from the hash-locked requirements of the release. Left out is what the machine has in the versions the lock names
(torch, triton, CUDA) and what the proof does not run (FlashInfer, TileLang, CUTLASS DSL ...).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
LOCK = PROJECT / "files/locks/vllm-0.23.0-cp312-x86_64.txt"
ON_THE_MACHINE = re.compile(r"(torch|torchvision|torchaudio|triton|numpy|numba|llvmlite|opencv-.*|nvidia-.*|cuda-.*)==")
NOT_RUN = re.compile(
    r"(flashinfer-.*|tilelang|z3-solver|quack-kernels|tokenspeed-.*|torch-c-dlpack-ext|ml-dtypes"
    r"|fastsafetensors|supervisor|grpcio)=="
)
#: Of the vLLM wheel: FlashAttention 2 holds no code for sm_90, the Rust front end and DeepGEMM are not used.
VLLM_LEFT_OUT = re.compile(r"vllm/(vllm-rs|vllm_flash_attn/_vllm_fa2_C|third_party/deep_gemm/)")


def main() -> int:
    """Write the pieces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PROJECT / ".gpu-pack")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to look into first")
    parser.add_argument("--piece", type=int, default=50 * 2**20, help="bytes per piece")
    parser.add_argument("--project-only", action="store_true", help="leave the pieces as they are")
    args = parser.parse_args()
    add_project(args.out / "project")
    if args.project_only:
        return 0
    for old in args.out.glob("piece-*"):
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory() as work:
        wheels, site = Path(work) / "wheels", Path(work) / "tree/site"
        download(wheels, args.wheels)
        for wheel in sorted(wheels.glob("*.whl")):
            unpack(wheel, site)
        archive = Path(work) / "archive.tar.xz"
        subprocess.run(["tar", "-C", str(site.parent), "-I", "xz -6 -T0", "-cf", str(archive), "."], check=True)
        pieces = split(archive, args.out, args.piece)
    print(f"{args.out}: {len(pieces)} pieces, {sum(p.stat().st_size for p in pieces) / 1e6:.0f} MB")
    return 0


def download(folder: Path, extra: Path | None) -> None:
    """Fetch the locked wheels that are carried, each checked by its hash."""
    wanted = [line for line in LOCK.read_text().splitlines() if re.match(r"[a-z0-9]", line)]
    carried = [line for line in wanted if not ON_THE_MACHINE.match(line) and not NOT_RUN.match(line)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(carried))
        requirements.flush()
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(5, 40)] + ["manylinux2014_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--require-hashes", "--python-version", "3.12", "--implementation", "cp", "-d", str(folder)]
        command += [part for name in platforms for part in ("--platform", name)]
        command += [part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi)]
        command += ["--find-links", str(extra)] if extra else []
        subprocess.run([*command, "-r", requirements.name], check=True)


def unpack(wheel: Path, site: Path) -> None:
    """Unzip one wheel without what is left out; data files of other install schemes are not needed here."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".data/" not in name and not VLLM_LEFT_OUT.match(name)]
        archive.extractall(site, names)


def add_project(folder: Path) -> None:
    """Copy the patch tool, the series and these scripts."""
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "src/seatfleet", folder / "tool/seatfleet", ignore=ignore)
    shutil.copytree(PROJECT / "files/patches/vllm-0.23.0", folder / "series")
    shutil.copytree(PROJECT / "tests/gpu", folder / "proof", ignore=ignore)


def split(archive: Path, folder: Path, size: int) -> list[Path]:
    """Cut the archive into numbered pieces of at most ``size`` bytes, one folder each so that they travel alone."""
    pieces = []
    with archive.open("rb") as handle:
        while chunk := handle.read(size):
            piece = folder / f"piece-{len(pieces) + 1}" / "part"
            piece.parent.mkdir()
            piece.write_bytes(chunk)
            pieces.append(piece)
    return pieces


if __name__ == "__main__":
    sys.exit(main())
