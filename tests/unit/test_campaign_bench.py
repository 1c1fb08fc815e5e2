"""The quick look, and the second client beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from campaign_fake import Behaviour, FakeVllm

from seatfleet.campaign.bench import bench, bench_text
from seatfleet.campaign.parity import Refusal
from seatfleet.campaign.prompts import load_frozen
from seatfleet.campaign.second_client import compare, conversations

# As much of `vllm bench serve` as is called: it reads the texts and leaves a result; what it was told lies beside it.
SECOND = """#!{python}
import json, os, pathlib, sys
options = dict(zip(sys.argv[3::2], sys.argv[4::2]))
texts = json.loads(pathlib.Path(options["--dataset-path"]).read_text())
pathlib.Path({told!r}).write_text(json.dumps([sys.argv[1:], os.environ.get("OPENAI_API_KEY"), texts]))
print("some\\nlines")
result = {{"completed": len(texts) - {lost}, "output_throughput": 1e-3, "median_ttft_ms": 5.0, "median_tpot_ms": 2.0}}
pathlib.Path(options["--result-dir"], options["--result-filename"]).write_text(json.dumps(result))
sys.exit({code})
"""


def second(folder: Path, *, lost: int = 0, code: int = 0) -> tuple[Path, Path]:
    executable, told = folder / "vllm", folder / "told.json"
    executable.write_text(SECOND.format(python=sys.executable, told=str(told), lost=lost, code=code))
    executable.chmod(0o755)
    return executable, told


def test_a_look_has_numbers_and_no_verdict():
    with FakeVllm(Behaviour(k=2, accepted=(2, 1))) as fake:
        found = bench(fake.url, None, None, ["count", "code"], [1, 4], 16)
    assert found["verdict"] is None and [(c["shape"], c["concurrency"]) for c in found["cells"]] == [
        ("count", 1), ("count", 4), ("code", 1), ("code", 4),
    ]  # fmt: skip
    assert all(cell["failed"] == 0 and cell["problem"] is None for cell in found["cells"])
    assert found["cells"][0]["acceptance_length"] == pytest.approx(2.5, abs=0.3)
    text = bench_text(found)
    assert "no floor, no verdict" in text and len(text.splitlines()) == 7


def test_somebody_elses_traffic_is_named():
    with FakeVllm(Behaviour(extra_successes=1)) as fake:
        found = bench(fake.url, None, None, ["count"], [1], 8)
    assert "8 requests ended, 4 were ours" in found["cells"][0]["problem"]


def test_the_second_client_gets_the_same_texts_and_its_disagreement_is_shown(tmp_path: Path):
    executable, told = second(tmp_path)
    with FakeVllm(Behaviour(api_key="sk-1")) as fake:
        found = bench(fake.url, None, "sk-1", ["count"], [2], 8, executable)
    argv, key, texts = json.loads(told.read_text())
    assert argv[:2] == ["bench", "serve"] and key == "sk-1" and "sk-1" not in argv
    options = dict(zip(argv[2::2], argv[3::2], strict=False))
    assert options["--max-concurrency"] == "2" and options["--temperature"] == "0" and options["--tokenizer"] == "/m"
    assert json.loads(options["--extra-body"])["cache_salt"]
    assert [one["conversations"][0]["value"] for one in texts] == [
        prompt.messages[0]["content"] for prompt in load_frozen("count", 8).take(4)
    ]
    rows = {row["metric"]: row for row in found["cross_check"]}
    assert not rows["aggregate_output_tok_s"]["agrees"] and rows["aggregate_output_tok_s"]["theirs"] == 1e-3
    assert "DIFFER" in bench_text(found)


@pytest.mark.parametrize(
    ("fault", "message"),
    [({"lost": 1}, "expected 4 answers, seen 3"), ({"code": 3}, "ended with 3: some / lines")],
)
def test_a_second_client_that_did_not_measure_is_refused(tmp_path: Path, fault: dict[str, int], message: str):
    executable, _ = second(tmp_path, **fault)
    with FakeVllm(Behaviour()) as fake, pytest.raises(Refusal, match=message):
        bench(fake.url, None, None, ["count"], [1], 8, executable)


def test_texts_that_the_second_client_cannot_send_are_refused():
    with pytest.raises(Refusal, match="single messages without tools"):
        conversations(load_frozen("tool").take(2))


@pytest.mark.parametrize(("theirs", "agrees"), [(100.0, True), (92.0, True), (89.0, False), (115.0, False)])
def test_two_clients_agree_within_a_tenth(theirs: float, agrees: bool):
    (row,) = compare({"aggregate_output_tok_s": 100.0, "icl_ms": 1.0}, {"output_throughput": theirs})
    seen: dict[str, Any] = row
    assert seen["agrees"] is agrees
