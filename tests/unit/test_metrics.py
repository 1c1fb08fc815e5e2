"""The exposition parser and counter increments."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from seatfleet.core.health.metrics import CounterReset, MetricsError, Page, boot_identity, delta, parse, parse_labels

RECORDED = Path(__file__).parent / "data" / "metrics-0.32.0-mtp2.prom"


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("up 1", "up", {}, 1.0),
        ('a:b_total{engine="0",model_name="t"} 3.0', "a:b_total", {"engine": "0", "model_name": "t"}, 3.0),
        ('a{x="quote \\" brace } comma , end"} 2', "a", {"x": 'quote " brace } comma , end'}, 2.0),
        ('a{x="back\\\\slash\\nline"} 2', "a", {"x": "back\\slash\nline"}, 2.0),
        ('a{x="b",} 2', "a", {"x": "b"}, 2.0),
        ("a{} 2", "a", {}, 2.0),
        ('a{x="1"} 1.5e+09 1600000000', "a", {"x": "1"}, 1.5e9),
        ('a_bucket{le="+Inf"} 4 # {trace="x"} 1.0', "a_bucket", {"le": "+Inf"}, 4.0),
        ("a +Inf", "a", {}, math.inf),
        ("a -Inf", "a", {}, -math.inf),
    ],
)
def test_lines(line: str, name: str, labels: dict[str, str], value: float) -> None:
    page = parse(f"# HELP x\n\n{line}\n")
    assert page.series(name) == {tuple(sorted(labels.items())): value}


@pytest.mark.parametrize(
    "line", ["<html>", '{"error":"Unauthorized"}', "name", "name abc", 'a{x="b" 3', 'a{x="b"}', "9name 3", "Not Found"]
)
def test_what_is_no_metrics_page(line: str) -> None:
    with pytest.raises(MetricsError, match="line 2 is not Prometheus text"):
        parse(f"ok 1\n{line}\n")


def test_bad_labels_are_reported_when_they_are_asked_for() -> None:
    page = parse("good 1\nbad{x=1} 2\n")
    assert page.total("good") == 1
    with pytest.raises(MetricsError, match="labels not understood"):
        page.total("bad")


def test_nan_is_never_summed() -> None:
    page = parse('a{engine="0"} 1\na{engine="1"} NaN\n')
    assert "a" in page
    with pytest.raises(MetricsError, match="NaN"):
        page.total("a")


def test_two_lines_of_one_series_are_refused() -> None:
    page = parse('a{x="1",y="2"} 1\na{y="2",x="1"} 1\n')
    with pytest.raises(MetricsError, match="two lines"):
        page.total("a")


def test_engines_are_summed_and_labels_select() -> None:
    page = parse('a{engine="0",r="x"} 1\na{engine="1",r="x"} 2\na{engine="1",r="y"} 4\n')
    assert page.total("a") == 7
    assert page.total("a", r="x") == 3
    with pytest.raises(MetricsError, match="not on the page"):
        page.total("a", r="z")
    assert page.total_or("b", 0.0) == 0


def test_a_recorded_page_of_a_real_server() -> None:
    page = parse(RECORDED.read_text())
    info = page.infos("vllm:cache_config_info")[0]
    assert (info["kv_cache_size_tokens"], info["num_gpu_blocks"]) == ("35108", "120")
    assert page.total("vllm:request_success_total") == 2
    assert boot_identity(page) == "process_start_time_seconds=1795983702.57"


def test_100k_lines_are_read_in_a_fraction_of_a_second() -> None:
    lines = "\n".join(
        f'vllm:x_bucket{{engine="0",le="{number}",model_name="tiny"}} {number}.0' for number in range(100_000)
    )
    began = time.process_time()
    page = parse(f"{lines}\nvllm:y 3\n")
    assert page.total("vllm:y") == 3
    assert time.process_time() - began < 0.5  # measured 0.11 s; the whole probe may cost 0.5 s


def pages(before: str, after: str) -> tuple[Page, Page]:
    start = "process_start_time_seconds 5\n"
    return parse(start + before), parse(start + after)


def test_increments_per_series_and_summed() -> None:
    old, new = pages(
        'c{engine="0",p="0"} 10\nc{engine="1",p="0"} 1\n',
        'c{engine="0",p="0"} 13\nc{engine="1",p="0"} 5\nc{engine="1",p="1"} 2\n',
    )
    found = delta(old, new, ["c"])
    assert found.total("c") == 9
    assert found.by_label("c", "p") == {"0": 7, "1": 2}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("c 10", "c 3", "went down from 10 to 3"),
        ('c{e="0"} 1\nc{e="1"} 1', 'c{e="0"} 9', "was on the page before"),
    ],
)
def test_a_counter_that_went_back_is_a_reset_and_never_zero(before: str, after: str, message: str) -> None:
    with pytest.raises(CounterReset, match=message):
        delta(*pages(before, after), ["c"])


def test_another_start_is_a_reset_even_when_every_counter_rose() -> None:
    old, new = parse("process_start_time_seconds 5\nc 10\n"), parse("process_start_time_seconds 6\nc 99\n")
    with pytest.raises(CounterReset, match="restarted between two readings"):
        delta(old, new, ["c"])


def test_boot_identity_without_the_process_collector() -> None:
    page = parse('vllm:request_success_created{reason="stop"} 7.25\nvllm:request_success_created{reason="x"} 7.5\n')
    assert boot_identity(page) == "created=7.25"
    assert boot_identity(parse("a 1\n")) is None


def test_missing_and_nan_are_errors_but_no_reset() -> None:
    with pytest.raises(MetricsError, match="not on the page"):
        delta(*pages("a 1", "a 1"), ["c"])
    with pytest.raises(MetricsError, match="NaN") as caught:
        delta(*pages("c 1", "c NaN"), ["c"])
    assert not isinstance(caught.value, CounterReset)


def test_labels_are_sorted() -> None:
    assert parse_labels('b="1",a="2"') == (("a", "2"), ("b", "1"))
    assert parse_labels("") == ()
